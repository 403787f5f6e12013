"""The image for processors, built without a daemon over a base made of Debian's packages."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.docker.dockerfile import DOCKER, ROOT, instructions, values
from tests.docker.programs import output_of
from tests.support.released import released

# What is downloaded is kept.
KEPT = ROOT / "build" / "image"
NEEDED = ("buildah", "debootstrap", "unshare", "chroot")
INDEX = "https://download.pytorch.org/whl/cpu"
_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34", "linux")
# What Debian calls the things that the named base has.
_PACKAGES = "ca-certificates,python3,python3-venv"


def missing() -> str | None:
    """Why no image can be built here; None if one can."""
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

    def size_bytes(self) -> int:
        """Bytes of its files, as an engine counts them: each file once."""
        told = output_of("du", "--summarize", "--bytes", str(self.root))
        return int(told.split()[0])

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
        """Runs a program to its end."""
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
    """An archive of Debian with its Python, made once."""
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
