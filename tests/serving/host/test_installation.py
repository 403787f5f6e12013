"""An installation without compiled code says so, whatever it is asked."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.native_library import FILE_NAME
from serving.host.installation import COMPILED_CODE, CompiledCode, missing_text

CHECKOUT = Path(__file__).parents[3]


def test_a_library_beside_the_modules_is_found_and_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "half_built_package"
    package.mkdir()
    (package / "__init__.py").touch()
    code = CompiledCode(package.name, "Python does it", serves=True)
    assert not code.is_built()
    (package / FILE_NAME).write_bytes(b"no library at all")
    assert code.is_built()
    assert not CompiledCode("no_such_package", "", serves=True).is_built()


def test_what_is_slower_is_said_of_each_package() -> None:
    told = missing_text(COMPILED_CODE)
    assert all(f"{code.package}: {code.instead}" in told for code in COMPILED_CODE)
    assert "C++ compiler" in told


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as they are where there was no compiler."""
    folder = tmp_path_factory.mktemp("bare")
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "native", "static")
    for name in ("kernels", "quant", "sharded_infer", "serving"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=ignored)
    return folder


def run_bare(bare: Path, *words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "serving.cli", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=bare,
        env={**os.environ, "PYTHONPATH": str(bare)},
    )


def test_a_server_without_compiled_code_warns_once_of_what_requests_pass_through(
    bare: Path, tmp_path: Path
) -> None:
    done = run_bare(bare, "serve", "-r", tmp_path, "--port", 0, "--http-port", 0)
    warned = [line for line in done.stderr.splitlines() if "without compiled code" in line]
    assert len(warned) == 1 and " WARNING " in warned[0], done.stderr
    assert "serving: Python reads requests" in warned[0] and "kernels: " in warned[0]
    assert "quant: " not in warned[0]


def test_doctor_calls_missing_compiled_code_a_problem(bare: Path) -> None:
    done = run_bare(bare, "doctor", "--json", "--port", 0)
    (found,) = (one for one in json.loads(done.stdout) if one["check"] == "compiled")
    assert done.returncode == 1 and found["verdict"] == "problem"
    assert "quant: " in found["detail"]
    assert "not compiled, and slower: kernels, quant" in run_bare(bare, "--version").stdout
