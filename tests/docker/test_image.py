"""The image, built and run: as a user without rights, on a root that nobody writes to."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.built_image import Image, built_image, missing
from tests.support.released import ASKS_FOR_RELEASE
from tests.support.server_processes import free_port
from tests.support.servers import publish_ranker

MOST_BYTES = 1_200_000_000
_SECONDS = 180.0

pytestmark = [*ASKS_FOR_RELEASE, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with built_image(tmp_path_factory.mktemp("image")) as built:
        yield built


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "models"
    publish_ranker(folder)
    folder.chmod(0o755)
    return folder


def test_it_is_small_and_has_neither_compiler_nor_pip(image: Image) -> None:
    assert image.size_bytes() <= MOST_BYTES
    found = [str(file.name) for file in image.root.glob("opt/sharded-infer/bin/pip*")]
    assert (
        found + [n for n in ("gcc", "g++", "strip") if (image.root / "usr/bin" / n).exists()] == []
    )


def test_doctor_finds_nothing_amiss_in_it(image: Image, models: Path) -> None:
    words = ["sharded-infer", "doctor", "--json", "--port", str(free_port()), "--folder", "/models"]
    done = image.run(words, models)
    findings = {one["check"]: one for one in json.loads(done.stdout)}
    assert [n for n, one in findings.items() if one["verdict"] == "problem"] == [], done.stdout
    assert all(findings[name]["detail"].endswith(", built in") for name in ("http2", "tls"))
    assert findings["compiled"]["verdict"] == "ok"


def test_nobody_writes_to_it(image: Image, models: Path) -> None:
    places = ["/opt/sharded-infer/x", "/models/x", "/x"]
    script = "id -u; for place in " + " ".join(places) + "; do ! touch $place || exit 1; done"
    done = image.run(["sh", "-c", script], models)
    assert (done.returncode, done.stdout) == (0, "10001\n"), done.stderr


def test_its_own_command_serves_and_its_own_probe_finds_it_healthy(
    image: Image, models: Path, tmp_path: Path
) -> None:
    http = free_port()
    ports = ["--port", str(free_port()), "--http-port", str(http), "--grace-seconds", "0"]
    words = [*image.settings["Entrypoint"], *image.settings["Cmd"], *ports]
    probe = [word.replace(":8002", f":{http}") for word in image.probe()]
    with (tmp_path / "log").open("w") as log:
        server = image.start(words, models, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + _SECONDS
            while time.monotonic() < deadline and server.poll() is None:
                if image.run(probe, models).returncode == 0:
                    break
                time.sleep(0.5)
            healthy = image.run(probe, models).returncode == 0
        finally:
            server.terminate()
            code = server.wait(_SECONDS)
    assert healthy and code == 0, (tmp_path / "log").read_text()
