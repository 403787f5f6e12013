"""`python -m benchmarks`, run in processes of their own."""

import subprocess

from tests.support.servers import run

_PROGRAM = "from benchmarks.__main__ import main\nmain()\n"


def run_benchmark(*words: object, seconds: float = 120.0) -> "subprocess.CompletedProcess[str]":
    """Runs a benchmark to its end.

    Args:
        seconds: after which it is killed.
    """
    return run(*words, seconds=seconds, program=_PROGRAM)
