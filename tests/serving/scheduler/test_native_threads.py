"""The compiled scheduler under threads, built with sanitizers."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE = "tests/serving/scheduler/native/threads.cpp"
FLAGS = ("-std=c++17", "-O1", "-g", "-ffp-contract=off", "-pthread", "-fno-sanitize-recover=all")
_SECONDS = 300


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_every_request_of_every_thread_has_one_fate(sanitizers: str, tmp_path: Path) -> None:
    program = tmp_path / "threads"
    build = ["g++", *FLAGS, f"-fsanitize={sanitizers}", "-Inative", SOURCE, "-o", str(program)]
    subprocess.run(build, cwd=ROOT, timeout=_SECONDS, check=True)
    done = subprocess.run(
        [str(program)], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(
        r"18000 calls, 0 without one fate; (\d+) ran; counters zero\n", done.stdout
    )
    assert found is not None, done.stdout
    assert int(found[1]) >= 1000
