"""Stages as processes with limits, and the figures that survive whatever ends one."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_INTERRUPTED_SECONDS = 5.0


def write_json(path: Path, document: Any) -> None:
    """Writes a file whole: a process that is killed meanwhile leaves the file before."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(new, path)


def supervise(command: Sequence[str], limit: float, folder: Path) -> str:
    """Runs a command and kills it, and the processes that it started, at its limit.

    Args:
        limit: seconds.
        folder: where it runs.

    Returns:
        What went wrong; empty if nothing did.
    """
    # A session of its own, so that its own processes can be killed with it.
    with subprocess.Popen(command, cwd=folder, start_new_session=True) as process:
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            return f"killed after {limit:.0f} s"
        return "" if code == 0 else f"ended with {code}"


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # First a chance to print where it hangs (faulthandler).
    os.killpg(process.pid, signal.SIGABRT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_INTERRUPTED_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
