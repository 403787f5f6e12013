"""The command in processes that need not import it: they are forked from one that has.

Importing torch and the rest takes most of three seconds of processor time, everything else of a
server's start a tenth of that.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

CHECKOUT = Path(__file__).parents[2]
_MODULE = "tests.support.forking_command"
# Read at run time; imports may have read any other variable.
_READ_LATER = ("ATEN_", "AWS_", "ONEDNN_", "PYTEST_", "SHARDED_INFER_", "TORCHINDUCTOR_")
_STEP_SECONDS = 60.0
_STARTING = threading.Lock()


class ForkedProcess:
    """A forked command, with the interface of `subprocess.Popen`."""

    def __init__(self, words: list[str], told: IO[str], stdout: IO[str] | None) -> None:
        self.args = words
        self.stdout = stdout
        self.returncode: int | None = None
        self._told = told
        line = self._line(_STEP_SECONDS)
        assert line, "the process that forks commands is gone"
        self.pid = int(line)

    def _line(self, seconds: float | None) -> str | None:
        return self._told.readline() if select.select([self._told], [], [], seconds)[0] else None

    def poll(self) -> int | None:
        if self.returncode is None and (line := self._line(0)) is not None:
            self._told.close()
            assert line, "the process that forks commands is gone"
            self.returncode = int(line)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            select.select([self._told], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # Its end may not have been reported yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class CommandForker:
    """The process that has imported the command."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the process; the first command waits for its imports."""
        self._environment = {
            name: value for name, value in environment.items() if not name.startswith(_READ_LATER)
        }
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(other.fileno())],
                cwd=CHECKOUT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )

    def fits(self, environment: Mapping[str, str]) -> bool:
        return not self.misfits(environment)

    def misfits(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        """Variables that its imports may have read with other values, and its values."""
        changed = (n for n in self._changed(environment) if not n.startswith(_READ_LATER))
        return {name: self._environment.get(name) for name in changed}

    def _changed(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        names = self._environment.keys() | environment.keys()
        changed = {name: environment.get(name) for name in names}
        return {n: v for n, v in changed.items() if v != self._environment.get(n)}

    def start(
        self,
        words: list[str],
        environment: Mapping[str, str],
        streams: tuple[int, int, int],
        stdout: IO[str] | None = None,
        program: str | None = None,
    ) -> ForkedProcess:
        """Fork a command, or a program that runs it, with streams and an environment that fits."""
        asked = {
            "words": words,
            "program": program,
            "folder": os.getcwd(),
            "changed": self._changed(environment),
        }
        read, write = os.pipe()
        try:
            message = [json.dumps(asked).encode()]
            socket.send_fds(self._control, message, [*streams, write])
        finally:
            os.close(write)
        # With both lines written it is at its end, which select sees whatever was read before.
        return ForkedProcess(words, os.fdopen(read), stdout)

    def close(self) -> None:
        self._control.close()
        self._process.wait(_STEP_SECONDS)


def command_forker() -> CommandForker:
    # Several threads may want it first.
    with _STARTING:
        return _started_forker()


@cache
def _started_forker() -> CommandForker:
    forker = CommandForker(_AT_FIRST)
    atexit.register(forker.close)
    return forker


@contextmanager
def restored_environment() -> Iterator[None]:
    """Restore variables that an import may have read; commands in this process change some."""
    before = _read_by_imports()
    yield
    for name in _read_by_imports().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _read_by_imports() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith(_READ_LATER)}


def environment() -> dict[str, str]:
    """The environment for commands: the checkout's packages come first."""
    path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
    asked = {**os.environ, "PYTHONPATH": path}
    # pytest-xdist sets 80, and tests that run a command here have removed it.
    asked.pop("COLUMNS", None)
    return asked


# The test that wants the first command may have set other variables.
_AT_FIRST = environment()
