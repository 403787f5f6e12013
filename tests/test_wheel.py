import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.released import ASKS_FOR_RELEASE, released_wheel

ROOT = Path(__file__).parents[1]
PACKAGES = {"kernels", "quant", "sharded_infer", "serving"}
BENCH, NGHTTP2 = "SHARDED_INFER_BENCH", "SHARDED_INFER_NGHTTP2"
OPENSSL = "SHARDED_INFER_OPENSSL"
# The compiled modules that an install would build.
EXTENSIONS = """
import setuptools
from distutils.core import run_setup
command = run_setup("setup.py", stop_after="commandline").get_command_obj("build_ext")
command.ensure_finalized()
for one in command.extensions:
    print(one.name, *one.depends)
"""

pytestmark = ASKS_FOR_RELEASE


@pytest.fixture(scope="module")
def wheel() -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(released_wheel()) as opened:
        yield opened


def test_the_wheel_holds_our_packages_whole_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    data = {
        "sharded_infer/FORMAT.md",
        "serving/http_api/openapi.json",
    }
    of_each = {f"{package}/{file}" for package in PACKAGES for file in ("py.typed", "_native.so")}
    assert sources | data | of_each <= names
    # No sources of what is compiled, and no load generator.
    assert not any(name.endswith((".cpp", ".inc", ".h")) for name in names)
    assert not any(name.startswith("serving/bench/_native") for name in names)


def test_the_wheel_holds_the_live_page_with_its_chart_library_unchanged(
    wheel: zipfile.ZipFile,
) -> None:
    home = ROOT / "serving" / "dashboard" / "static"
    files = {p.relative_to(ROOT).as_posix() for p in home.rglob("*") if p.is_file()}
    assert len(files) > 10 and files <= set(wheel.namelist())
    table = (home / "vendor" / "README.md").read_text()
    listed = dict(re.findall(r"^\| `([^`]+)` \| `([0-9a-f]{64})` \|$", table, re.MULTILINE))
    assert set(listed) == {p.name for p in (home / "vendor").iterdir()} - {"README.md"}
    for name, expected in listed.items():
        content = wheel.read(f"serving/dashboard/static/vendor/{name}")
        assert hashlib.sha256(content).hexdigest() == expected, name


def test_the_wheel_has_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "sharded-infer = serving.cli:main" in wheel.read(entry_points).decode()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_the_wheel_pins_torch_and_fbgemm_as_a_pair(wheel: zipfile.ZipFile) -> None:
    (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    text = wheel.read(metadata).decode()
    assert "Requires-Dist: torch==2.13.*" in text
    assert "Requires-Dist: fbgemm-gpu-cpu==1.8.*" in text


@pytest.mark.parametrize(("asked", "is_built"), [("1", True), ("0", False), ("", False)])
def test_the_load_generator_is_built_where_it_is_asked_for(asked: str, is_built: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXTENSIONS],
        cwd=ROOT,
        env={**os.environ, BENCH: asked},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.split()
    assert {"kernels._native", "quant._native", "serving._native"} <= set(words)
    assert ("serving.bench._native" in words) is is_built
    headers = {str(path.relative_to(ROOT)) for path in ROOT.glob("native/*/*.h")}
    assert headers <= set(words)


@pytest.mark.parametrize(("variable", "lacks"), [(NGHTTP2, "lib has no"), (OPENSSL, "libssl.a")])
def test_libraries_that_are_none_end_the_build(variable: str, lacks: str, tmp_path: Path) -> None:
    places = ("--build-lib", str(tmp_path / "lib"), "--build-temp", str(tmp_path / "temp"))
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", *places],
        cwd=ROOT,
        env={**os.environ, variable: str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"{variable}: " in done.stderr and f"{tmp_path}/{lacks}" in done.stderr
