import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.triton_interpreter import interpreter_problem

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(600)
def test_the_triton_kernels_agree_with_the_reference_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    if problem := interpreter_problem():
        pytest.skip(problem)
    command = [sys.executable, "-m", "pytest", "-q", "tests/kernels/interpreted"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
