"""The image, built without a daemon, and run by a user without rights on a read-only root."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.docker.dockerfile import DOCKER, ROOT, instructions, output_of, values
from tests.support.released import ASKS_FOR_RELEASE, released
from tests.support.server_processes import free_port
from tests.support.servers import publish_ranker

# What is downloaded is kept.
KEPT = ROOT / "build" / "image"
NEEDED = ("buildah", "debootstrap", "unshare", "chroot")
INDEX = "https://download.pytorch.org/whl/cpu"
_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34", "linux")
# What Debian calls the things that the named base has.
_PACKAGES = "ca-certificates,python3,python3-venv"


def missing() -> str | None:
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)}: not installed (.ci/run does it)"
    return None if os.geteuid() == 0 else "only root makes a base and mounts it"


@dataclass(frozen=True, slots=True)
class Image:
    """A built image: its folder, and its entry point, command, variables and user."""

    root: Path
    settings: dict[str, Any]

    def probe(self) -> list[str]:
        """The command of its health check, which OCI's settings have no place for."""
        words: list[str] = json.loads(values("cpu", "HEALTHCHECK")[-1].split("CMD ", 1)[1])
        return words

    def start(self, words: list[str], models: Path, **options: Any) -> "subprocess.Popen[str]":
        """Starts a program as its user, on a root that cannot be written to, with /models."""
        user = self.settings["User"]
        script = (
            f"mount --bind {self.root} {self.root} && mount -o remount,bind,ro {self.root}"
            f" && mount --bind -o ro {models} {self.root}/models"
            f" && mount -t tmpfs tmpfs {self.root}/tmp && mount --rbind /proc {self.root}/proc"  # noqa: S108 - the image's
            f" && mount --rbind /dev {self.root}/dev"
            f' && exec chroot --userspec={user} {self.root} env --ignore-environment "$@"'
        )
        inside = [*self.settings["Env"], "HOME=/tmp", *words]
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", script, "sh", *inside],  # noqa: S607
            text=True,
            **options,
        )

    def run(self, words: list[str], models: Path) -> "subprocess.CompletedProcess[str]":
        piped = partial(self.start, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with piped(words, models) as process:
            out, errors = process.communicate(timeout=300)
        return subprocess.CompletedProcess(words, process.returncode, out, errors)


@contextmanager
def built_image(home: Path) -> Iterator[Image]:
    """Builds the Dockerfile's last stage with this tree's wheel; `home` takes some gigabytes."""
    places = ("--root", str(home / "images"), "--runroot", str(home / "run"))
    buildah = partial(output_of, "buildah", *places, "--storage-driver", "vfs")
    try:
        base = buildah("from", "scratch").strip()
        buildah("add", "--quiet", base, str(_base()), "/")
        buildah("commit", "--quiet", "--rm", base, _tag())
        context = home / "context"
        (context / "docker").mkdir(parents=True)
        shutil.copy(DOCKER / "requirements.txt", context / "docker")
        shutil.copytree(released(), context / "dist")
        (home / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /downloaded\n")
        mounted = (f"{_downloaded()}:/downloaded:ro", f"{home / 'pip.conf'}:/etc/pip.conf:ro")
        buildah(
            *("build", "--quiet", "--isolation", "chroot", "--pull-never", "--layers=false"),
            *("--file", str(DOCKER / "Dockerfile"), "--target", "cpu", "--tag", "built"),
            *(word for mount in mounted for word in ("--volume", mount)),
            str(context),
        )
        made = buildah("from", "--pull-never", "built").strip()
        root = Path(buildah("mount", made).strip())
        settings = json.loads(buildah("inspect", made))["OCIv1"]["config"]
        yield Image(root, settings)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _tag() -> str:
    (argument,) = (one["value"] for one in instructions() if one["instruction"] == "ARG")
    return f"docker.io/library/{argument.removeprefix('PYTHON=')}"


def _base() -> Path:
    archive = KEPT / "base.tar"
    if not archive.is_file():
        made = KEPT / "base"
        shutil.rmtree(made, ignore_errors=True)
        release = _tag().rpartition("-")[2]
        output_of("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", release, str(made))
        shutil.rmtree(made / "var" / "cache" / "apt")
        (made / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        output_of("tar", "--create", "--file", str(archive), "--directory", str(made), ".")
        shutil.rmtree(made)
    return archive


def _downloaded() -> Path:
    """A folder with the packages that the image installs, downloaded once."""
    requirements = DOCKER / "requirements.txt"
    (pair,) = (
        re.findall(r"(?:torch|fbgemm-gpu-cpu)==\S+", step)
        for step in values("packages-cpu", "RUN")
        if "torch==" in step
    )
    digest = sha256(f"{requirements.read_text()}{pair}".encode()).hexdigest()[:16]
    folder = KEPT / f"packages-{digest}"
    if not folder.is_dir():
        platforms = [f"--platform={name}_x86_64" for name in _PLATFORMS]
        making = folder.with_suffix(".making")
        words = ("--quiet", "--no-deps", "--only-binary=:all:", "--python-version=3.11", *platforms)
        listed = ("--dest", str(making), "--requirement", str(requirements), *pair)
        command = (sys.executable, "-m", "pip", "download", *words, *listed)
        try:
            output_of(*command)
        except AssertionError:
            output_of(*command, "--extra-index-url", INDEX)
        making.rename(folder)
    return folder


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
    # Each file once, as an engine counts them.
    assert int(output_of("du", "-sb", str(image.root)).split()[0]) <= MOST_BYTES
    found: list[object] = [*image.root.glob("opt/sharded-infer/bin/pip*")]
    found += [n for n in ("gcc", "g++", "strip") if (image.root / "usr/bin" / n).exists()]
    assert found == []


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


def test_its_command_serves_as_its_probe_finds(image: Image, models: Path, tmp_path: Path) -> None:
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
