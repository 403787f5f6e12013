"""A load in a separate process, and the cores of servers and loads."""

import os
import pickle
import sys
from collections.abc import Callable
from subprocess import PIPE, run

from kernels.errors import InputError, ShardedInferError
from serving.bench.load.result import LoadResult

_PROGRAM = "from serving.bench.load.process import main; main()"


def split_cpus() -> tuple[set[int], set[int]]:
    """The first core for a server, and the last one for its load; they are the same on one core."""
    cpus = sorted(os.sched_getaffinity(0))
    return {cpus[0]}, {cpus[-1]}


def run_in_process(load: Callable[[], LoadResult]) -> LoadResult:
    """Generate a load, a `partial` of a `run_…` function, in a process on the load's core.

    Raises InputError from the load, and ShardedInferError if the process ended without a result.
    """
    # A separate process group: this process handles interrupts, and kills the load.
    # Not a session: Linux shares cores between sessions, whatever their priorities are.
    process = run(  # noqa: S603 - our own command
        [sys.executable, "-c", _PROGRAM],
        input=pickle.dumps(load),
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
    load = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this
    os.sched_setaffinity(0, split_cpus()[1])
    try:
        answer = load()
    except InputError as error:
        answer = str(error)
    pickle.dump(answer, sys.stdout.buffer)
