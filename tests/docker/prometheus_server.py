"""Debian's Prometheus on a loopback port, with the project's own configuration, and its answers."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests.support.server_processes import free_port
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "docker" / "prometheus"
NEEDS_PROMETHEUS = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus and promtool are not installed (apt-get install prometheus)",
)
_START_SECONDS = 120.0
_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus, which was ready at `began`, seconds since 1970."""

    url: str
    began: float

    def get(self, path: str, **parameters: object) -> Any:
        query = urlencode(parameters, doseq=True)
        with urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as response:  # noqa: S310
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]

    def now(self, expression: str) -> list[float]:
        """The values of an expression now, one for each series; NaN are left out."""
        found = self.get("query", query=expression)["result"]
        return [value for one in found if (value := float(one["value"][1])) == value]

    def over_time(self, expression: str, until: float) -> list[float]:
        """All values of an expression since the start, second by second; NaN are left out."""
        found = self.get("query_range", query=expression, start=self.began, end=until, step=1)
        values = [float(value) for one in found["result"] for _, value in one["values"]]
        return [value for value in values if value == value]


@contextmanager
def running_prometheus(home: Path, *targets: str) -> Iterator[Prometheus]:
    """Starts Prometheus with `docker/prometheus`; it scrapes `host:port` of pages each second."""
    settings = yaml.safe_load((CONFIGURATION / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(CONFIGURATION / name) for name in settings["rule_files"]]
    for job in settings["scrape_configs"]:
        job["static_configs"] = [{"targets": list(targets)}]
    (home / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    words = [
        "prometheus",
        f"--config.file={home / 'prometheus.yml'}",
        f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=home)
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: process.poll() is not None or is_ready(url), "it starts", _START_SECONDS)
            assert process.poll() is None, (home / "log").read_text()
            # It begins to scrape seconds after it is ready.
            started, all_up = Prometheus(url, time.time()), [1.0] * len(targets)
            until(lambda: started.now("up") == all_up, "it scrapes", _START_SECONDS)
            yield Prometheus(url, time.time())
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_ready(url: str) -> bool:
    with suppress(OSError), urlopen(f"{url}/-/ready", timeout=30) as answer:  # noqa: S310 - ours
        return bool(answer.status == 200)
    return False
