import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"kernels", "quant", "sharded_infer", "serving"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    # Built from a copy: a build leaves folders beside its sources.
    copy = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), "."],
        cwd=copy,
        capture_output=True,
        check=True,
    )
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_our_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


def test_the_wheel_holds_every_module_of_our_packages(wheel: zipfile.ZipFile) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert sources <= set(wheel.namelist())


def test_the_wheel_holds_the_format_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert "sharded_infer/FORMAT.md" in wheel.namelist()
    assert "kernels/triton_choices.json" in wheel.namelist()
    assert all(f"{package}/py.typed" in wheel.namelist() for package in PACKAGES)


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
    licence = "licenses/serving/dashboard/static/vendor/LICENSE"
    assert any(name.endswith(licence) for name in wheel.namelist())


def test_the_wheel_has_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "sharded-infer = serving.cli:main" in wheel.read(entry_points).decode()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_the_wheel_pins_torch_and_fbgemm_as_a_pair(wheel: zipfile.ZipFile) -> None:
    (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    text = wheel.read(metadata).decode()
    assert "Requires-Dist: torch==2.13.*" in text
    assert "Requires-Dist: fbgemm-gpu-cpu==1.8.*" in text


def test_the_wheel_holds_the_compiled_encoder_where_there_is_a_compiler(
    wheel: zipfile.ZipFile,
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    assert any(name.startswith("quant/_native") for name in wheel.namelist())
    assert not any(name.endswith((".cpp", ".inc", ".h")) for name in wheel.namelist())
