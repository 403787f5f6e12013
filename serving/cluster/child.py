"""A command of `sharded-infer` that the kernel kills together with its parent."""

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Run the command line that follows the parent's process id."""
    parent = int(sys.argv.pop(1))
    # Its replacement may be started elsewhere at once, so it does not drain first.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        runpy.run_module("serving.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
