"""A release's wheel in an environment with what it asks pip for, and no compiler."""

import importlib.metadata
import json
import re
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.openssl import VERSION
from release.source_tree import project_version
from serving.commands.doctor import examine
from tests.support.released import ASKS_FOR_RELEASE, released, released_wheel
from tests.support.server_processes import free_port
from tests.support.servers import read_ready

PACKAGE = "sharded-infer"
PUBLISHING = """
import sys

import torch
from torch import nn

from sharded_infer import DenseSpec, ModelSpec, TableSpec, TowerSpec, publish


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4 + 8, 1)

    def forward(self, dense, embeddings):
        return torch.sigmoid(self.score(torch.cat([dense, embeddings], dim=1))).squeeze(1)


spec = ModelSpec(
    name="ranker",
    tables=(TableSpec("item", rows=100, dim=8),),
    dense=DenseSpec({"dense": 4}),
    tower=TowerSpec(outputs=("score",)),
)
tables = {"item": nn.EmbeddingBag(100, 8, mode="sum")}
print(publish(spec, tables, Tower(), sys.argv[1], topologies=["cpu:1"]).location)
"""

pytestmark = ASKS_FOR_RELEASE


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the wheel; on the path of its processes are its own commands alone."""

    home: Path
    variables: Mapping[str, str]

    @property
    def site(self) -> Path:
        """Where its packages are."""
        return next(self.home.glob("lib/python3*/site-packages"))

    def run(self, program: str, *words: object, code: int = 0) -> str:
        """The output of one of its programs; of one that fails, its errors."""
        done = subprocess.run(
            [str(self.home / "bin" / program), *map(str, words)],
            cwd=self.home,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout


def needed_packages() -> dict[str, importlib.metadata.Distribution]:
    """All that the project needs without an extra, by following requirements."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [(PACKAGE, "")]
    seen = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[name] = importlib.metadata.distribution(name)
        for line in found[name].requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), e) for e in ("", *needed.extras)]
    return {name: one for name, one in found.items() if name != PACKAGE}


def environment_of(archive: Path, home: Path, *options: str) -> Installed:
    """Installs an archive beside the packages of this environment that it needs, and no others."""
    venv.create(home, symlinks=True)
    made = Installed(home, {"PATH": str(home / "bin"), "HOME": str(home), "LANG": "C.UTF-8"})
    for package in needed_packages().values():
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (made.site / top).symlink_to(Path(str(package.locate_file(top))))
    words = ("--python", home / "bin" / "python", "install", "--no-index", "--no-cache-dir")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--isolated", *map(str, words), *options, str(archive)],
        env={**made.variables, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return environment_of(released_wheel(), tmp_path_factory.mktemp("wheel") / "home")


def findings(installed: Installed) -> dict[str, Any]:
    told = installed.run("sharded-infer", "doctor", "--json", "--port", free_port())
    return {one["check"]: one for one in json.loads(told)}


def test_the_wheel_asks_for_nothing_but_what_it_names(installed: Installed) -> None:
    versions = installed.run("sharded-infer", "--version")
    assert versions.startswith(f"sharded-infer {project_version()}\n")
    assert "compiled: kernels, quant, sharded_infer, serving\n" in versions
    # None that only the extras and the tests have.
    assert not any((installed.site / name).exists() for name in ("pytest", "s3fs", "pyarrow"))


def test_doctor_finds_nothing_amiss_and_the_libraries_inside(installed: Installed) -> None:
    found = findings(installed)
    assert [name for name, one in found.items() if one["verdict"] == "problem"] == []
    here = {one.check: one.detail for one in examine([])}
    assert found["kernels"]["detail"] == here["kernels"]
    assert found["http2"]["detail"].endswith(", built in") and found["http2"]["verdict"] == "ok"
    tls = found["tls"]["detail"]
    assert tls.startswith(f"OpenSSL {VERSION} ") and tls.endswith(", built in")


def test_a_model_is_published_served_and_asked(installed: Installed, tmp_path: Path) -> None:
    installed.run("python", "-c", PUBLISHING, tmp_path / "models")
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"dense": [1, 2, 3, 4], "item": [5, 7]}\n{"dense": [0, 0, 0, 0]}\n')
    (tmp_path / "tokens").write_text("a-token-of-the-tests predict\n")
    (tmp_path / "token").write_text("a-token-of-the-tests")
    scored = installed.run("sharded-infer", "predict", samples, "-r", tmp_path / "models")
    ports = ("--port", "0", "--http-port", "0", "--grace-seconds", "0", "--json")
    words = ("serve", "-r", tmp_path / "models", *ports, "--tokens-file", tmp_path / "tokens")
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [str(installed.home / "bin" / "sharded-infer"), *map(str, words)],
            cwd=tmp_path,
            env=installed.variables,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as server,
    ):
        try:
            ready = read_ready(server, tmp_path / "log")
            asked = ("-a", ready["grpc_url"], "--token-file", tmp_path / "token")
            served = installed.run("sharded-infer", "predict", samples, *asked)
            maps = Path(f"/proc/{server.pid}/maps").read_text()
        finally:
            server.terminate()
    assert server.returncode == 0
    assert served == scored and len(served.splitlines()) == 3
    assert "libnghttp2" not in maps and str(installed.home) in maps


def test_a_source_distribution_without_a_compiler_says_what_to_install(tmp_path: Path) -> None:
    (archive,) = released().glob("*.tar.gz")
    bare = environment_of(archive, tmp_path / "home", "--no-build-isolation")
    words = r"error: installed without compiled code \([a-z_, ]+\): install a wheel of "
    for command in ("doctor", "serve", "publish"):
        said = bare.run("sharded-infer", command, code=1)
        assert re.match(words, said) and said.count("\n") == 1, said
    said = bare.run("python", "-c", PUBLISHING, tmp_path / "models", code=1)
    assert "CompiledCodeError: installed without compiled code" in said
