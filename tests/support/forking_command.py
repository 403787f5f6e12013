"""A process that imports the command once, and forks a child for every requested command line.

usage: python -m tests.support.forking_command DESCRIPTOR of a Unix socket. A message there is JSON:
`words` of a command line, the `program` in Python that runs it (null for the command itself), the
`folder` to run it in, the `changed` environment variables (null for removed ones). It brings four
descriptors: the child's stdin, stdout and stderr, and one for reports: a line with the child's
process id and, at its end, a line with its exit code.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import serving.cli
from serving.commands.groups import BENCH_COMMANDS, CLUSTER_COMMANDS, REPO_COMMANDS
from serving.commands.lazy_group import load_by_name

_MOST_BYTES = 1 << 18
_DESCRIPTORS = 4


class Children:
    """Living children by descriptor, each with its id and the receiver of its exit code."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._living: dict[int, tuple[int, int]] = {}
        self._selector = DefaultSelector()
        self._selector.register(control, EVENT_READ)

    def fork_until_told(self) -> tuple[list[str], str | None] | None:
        """In a child, a command line and its program; None at the end of input."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._control:
                    self._handle_exit(key.fd)
                    continue
                message, descriptors, _, _ = socket.recv_fds(
                    self._control, _MOST_BYTES, _DESCRIPTORS
                )
                if not message:
                    return None
                asked = json.loads(message)
                if self._fork(asked, descriptors):
                    return asked["words"], asked["program"]

    def _fork(self, asked: dict[str, Any], descriptors: list[int]) -> bool:
        *streams, told = descriptors
        pid = os.fork()
        if pid == 0:
            self._forget()
            os.close(told)
            _become(asked, streams)
            return True
        for stream in streams:
            os.close(stream)
        os.write(told, b"%d\n" % pid)
        watched = os.pidfd_open(pid)
        self._living[watched] = pid, told
        self._selector.register(watched, EVENT_READ)
        return False

    def _handle_exit(self, watched: int) -> None:
        pid, told = self._living.pop(watched)
        self._selector.unregister(watched)
        os.close(watched)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # The receiver may be gone.
        with suppress(BrokenPipeError):
            os.write(told, b"%d\n" % code)
        os.close(told)

    def _forget(self) -> None:
        self._selector.close()
        self._control.close()
        for watched, (_, told) in self._living.items():
            os.close(watched)
            os.close(told)


def _become(asked: dict[str, Any], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["folder"])
    for name, value in asked["changed"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    # Ctrl-C is for the test runner.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Children would import them one by one.
    for entry in (*serving.cli.COMMANDS, *REPO_COMMANDS, *CLUSTER_COMMANDS, *BENCH_COMMANDS):
        load_by_name(entry.target)
    for name in ("serving.process.server", "serving.commands.opened_version"):
        importlib.import_module(name)
    # Children would copy the pages that the collector visits.
    gc.collect()
    gc.freeze()
    told = Children(socket.socket(fileno=int(sys.argv[1]))).fork_until_told()
    if told is not None:
        told_words, program = told
        # From here on as in the entry point, which is in no package, to the interpreter's end.
        __package__ = ""
        sys.argv = ["sharded-infer", *told_words]
        if program is None:
            serving.cli.main()
        else:
            exec(program, {"__name__": "__main__"})  # noqa: S102 - a test's own
