"""A load in a separate process, on its own processors."""

import os
import pickle
import sys
from collections.abc import Callable, Set
from subprocess import PIPE, run

from kernels.errors import InputError, ShardedInferError
from serving.bench.load.result import LoadResult

_PROGRAM = "from serving.bench.load.process import main; main()"


def run_in_process(load: Callable[[], LoadResult], cpus: Set[int] | None) -> LoadResult:
    """Generate a load, a `partial` of a `run_…` function, in a process on these cpus.

    Raises:
        InputError: from the load, or the machine lacks the processors.
        ShardedInferError: the process ended without a result.
    """
    # A separate process group: this process handles interrupts, and kills the load.
    # Not a session: Linux shares cores between sessions, whatever their priorities are.
    process = run(  # noqa: S603 - our own command
        [sys.executable, "-c", _PROGRAM],
        input=pickle.dumps((load, cpus)),
        stdout=PIPE,
        process_group=0,
        check=False,
    )
    if process.returncode != 0:
        raise ShardedInferError(
            f"the load's process ended with exit code {process.returncode}; its error output is "
            "above"
        )
    answer: LoadResult | str = pickle.loads(process.stdout)  # noqa: S301 - of our own process
    if isinstance(answer, str):
        raise InputError(answer)
    return answer


def main() -> None:
    """Read a load from standard input, generate it, and write its result or its error."""
    load, cpus = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this
    try:
        if cpus is not None:
            _run_on(cpus)
        answer = load()
    except InputError as error:
        answer = str(error)
    pickle.dump(answer, sys.stdout.buffer)


def _run_on(cpus: Set[int]) -> None:
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, ValueError) as error:
        raise InputError(f"cpus: cannot run on {sorted(cpus)}: {error}") from error
