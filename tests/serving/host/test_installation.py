import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare")
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "native", "static")
    for name in ("kernels", "quant", "sharded_infer", "serving"):
        shutil.copytree(Path(__file__).parents[3] / name, folder / name, ignore=ignored)
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


@pytest.mark.parametrize("words", [("doctor",), ("serve", "-r", "models"), ("publish", "--help")])
def test_every_command_ends_with_what_to_install(bare: Path, words: tuple[str, ...]) -> None:
    done = run_bare(bare, *words)
    assert (done.returncode, done.stdout) == (1, "")
    said = re.fullmatch(
        r"error: installed without compiled code \((.+)\): install a wheel of sharded-infer, or a "
        r"C\+\+ compiler \(g\+\+ or clang\+\+\) and then sharded-infer again\n",
        done.stderr,
    )
    assert said is not None and said[1].startswith("kernels"), done.stderr


def test_the_version_is_said_all_the_same(bare: Path) -> None:
    assert "compiled: nothing" in run_bare(bare, "--version").stdout
    assert run_bare(bare, "--help").returncode == 0
