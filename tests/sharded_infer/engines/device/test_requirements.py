import importlib.util
import sysconfig
from pathlib import Path

import pytest

from sharded_infer.engines.device.requirements import missing_for_gpus


@pytest.fixture(autouse=True)
def _tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with gcc and Python's headers, whatever this one has."""
    (tmp_path / "bin").mkdir()
    gcc = tmp_path / "bin" / "gcc"
    gcc.write_text("#!/bin/sh\n")
    gcc.chmod(0o755)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CC", raising=False)
    paths = sysconfig.get_paths() | {"include": str(tmp_path / "include")}
    monkeypatch.setattr(sysconfig, "get_paths", lambda scheme: paths)


@pytest.fixture
def _triton() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")


@pytest.mark.usefixtures("_triton")
def test_nothing_is_missing_where_all_is_there() -> None:
    assert missing_for_gpus() == ()


@pytest.mark.usefixtures("_triton")
def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin" / "gcc").unlink()
    (missing,) = missing_for_gpus()
    assert missing.startswith("a C compiler (gcc or clang)")
    monkeypatch.setenv("CC", "no-such-compiler")
    (missing,) = missing_for_gpus()
    assert "CC=no-such-compiler is none" in missing


@pytest.mark.usefixtures("_triton")
def test_missing_headers_are_named_with_their_place(tmp_path: Path) -> None:
    header = tmp_path / "include" / "Python.h"
    header.unlink()
    (missing,) = missing_for_gpus()
    assert str(header) in missing


def test_triton_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing_for_gpus() == ("triton (extra: cuda)",)
