"""The image's own commands, run in a clean environment: what they make becomes healthy."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.docker.dockerfile import DOCKER, ROOT, values
from tests.support.server_processes import free_port
from tests.support.servers import Ranker, publish_ranker

_SECONDS = 180.0
STEPS = pytest.mark.skipif(
    "SHARDED_INFER_TEST_IMAGE" not in os.environ,
    reason="installs torch anew, minutes of work: set SHARDED_INFER_TEST_IMAGE=1",
)


@STEPS
@pytest.mark.timeout(900)
def test_the_images_steps_make_a_server_that_becomes_healthy(tmp_path: Path) -> None:
    # The image's folders, each in a place of its own here.
    places = {
        "/opt/sharded-infer": str(tmp_path / "opt"),
        "/wheels": str(tmp_path / "wheels"),
        "/requirements.txt": str(DOCKER / "requirements.txt"),
        "/models": str(tmp_path / "models"),
        "/nghttp2.txt": str(DOCKER / "nghttp2.txt"),
        "/sources": str(tmp_path / "sources"),
    }
    source = tmp_path / "source"
    source.mkdir()
    for copy in values("builder", "COPY"):
        for name in copy.split()[:-1]:
            _copy(ROOT / name, source / Path(name).name)
    for stage, folder in (("builder", source), ("packages-cpu", tmp_path)):
        for step in values(stage, "RUN"):
            if "apt-get" not in step:
                _run(_placed(step, places), folder)
    # The image has no libnghttp2 of its own.
    done = subprocess.run(
        [str(tmp_path / "opt" / "bin" / "sharded-infer"), "doctor", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    checks = {one["check"]: one["detail"] for one in json.loads(done.stdout)}
    assert checks["http2"] == "libnghttp2 1.70.0, built in"
    ranker = publish_ranker(tmp_path / "models")
    _becomes_healthy(tmp_path, places, ranker)
    # A gigabyte, which pytest would keep for three runs.
    shutil.rmtree(tmp_path / "opt")


def _becomes_healthy(home: Path, places: Mapping[str, str], ranker: Ranker) -> None:
    port = free_port()
    bin_folder = home / "opt" / "bin"
    environment = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "HOME": str(home)}
    words = [*json.loads(values("cpu", "ENTRYPOINT")[-1]), *json.loads(values("cpu", "CMD")[-1])]
    words = [_placed(word, places) for word in words]
    ports = ["--port", str(free_port()), "--http-port", str(port), "--grace-seconds", "0"]
    probe = json.loads(values("cpu", "HEALTHCHECK")[-1].split("CMD ", 1)[1])
    probe = [word.replace(":8002", f":{port}") for word in probe]
    with (home / "log").open("w") as log:
        # Neither the checkout nor this environment's packages are in reach.
        process = subprocess.Popen(
            [str(bin_folder / words[0]), *words[1:], *ports],
            cwd=home,
            env=environment,
            stdout=log,
            stderr=log,
        )
        try:
            assert _probed(probe, environment) != 0, "healthy before it was ready"
            deadline = time.monotonic() + _SECONDS
            while time.monotonic() < deadline and process.poll() is None:
                if _probed(probe, environment) == 0:
                    break
                time.sleep(0.5)
            assert _probed(probe, environment) == 0, (home / "log").read_text()
        finally:
            process.terminate()
            code = process.wait(_SECONDS)
    assert code == 0, (home / "log").read_text()
    assert str(ranker.model.version) in (home / "log").read_text()


def _probed(probe: list[str], environment: Mapping[str, str]) -> int:
    return subprocess.run(
        probe, env=environment, capture_output=True, check=False, timeout=_SECONDS
    ).returncode


def _placed(text: str, places: Mapping[str, str]) -> str:
    for there, here in places.items():
        text = re.sub(rf"(?<![\w./]){re.escape(there)}(?![\w-])", here, text)
    return text.replace("python -m", f"{sys.executable} -m")


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        leave = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(source, target, ignore=leave)
    else:
        shutil.copy(source, target)


def _run(step: str, folder: Path) -> None:
    outside = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    # Of torch's modules few are imported here, and compiled then.
    outside["PIP_COMPILE"] = "0"
    done = subprocess.run(
        ["/bin/sh", "-ec", step],
        cwd=folder,
        env=outside,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
