"""Stages as processes with limits, and figures that survive their end."""

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
    """Write a complete file: a process that is killed meanwhile leaves the previous one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(new, path)


def supervise(command: Sequence[str], limit: float, folder: Path) -> str:
    """Run a command, and kill its processes after `limit` seconds; return what went wrong."""
    # A separate session, so that its own processes can be killed with it.
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
