"""Forks processes from a process without threads, reaps them and restarts them.

A process that dies soon after its start is restarted after a delay. A process that hangs is killed.
"""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable
from time import monotonic, sleep
from typing import NoReturn

from serving.control.server_state import ServerState
from serving.host.heartbeat import Silence
from sharded_infer.errors import ShardedInferError

_log = logging.getLogger("sharded_infer")
POLL_SECONDS = 0.05
# A process that dies within this time of its start is restarted after a delay.
_YOUNG_SECONDS = 1.0
_BACK_OFF_SECONDS = 1.0
# The parent blocks these signals and waits for them.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)
END = signal.SIGUSR1  # the parent tells a child to drain and end
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
STANDBY, WATCHER = -1, -2
_NAMES = {STANDBY: "the metrics process", WATCHER: "the follower"}
# A look adds at most so many poll intervals; in a longer gap this process itself was stopped.
_MOST_POLLS = 4
# Share of the limit after which a server with a silent worker is not ready.
_SILENT_SHARE = 0.5
# Seconds of silence after which a process that was told to end is killed.
_END_SECONDS = 5.0


class ChildProcesses:
    """The server's other processes, by number: workers from 0, others negative."""

    def __init__(self, run: Callable[[int], None]) -> None:
        """Start no process yet; `run` is called in the process, which ends when it returns."""
        self._run = run
        self._numbers: dict[int, int] = {}  # by process id
        self._started: dict[int, float] = {}  # by number
        self._due: dict[int, float] = {}  # by number: when to restart it

    @property
    def numbers(self) -> set[int]:
        """Numbers of the running processes."""
        return set(self._numbers.values())

    def start(self, number: int) -> None:
        """Fork the process with this number."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._due.pop(number, None)
        self._started[number] = monotonic()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_child(parent, lambda: self._run(number))
        self._numbers[pid] = number

    def reap(self) -> dict[int, str]:
        """Reap processes that have ended since the last call; how each ended, by number."""
        ended = {}
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            number = self._numbers.pop(pid)
            ended[number] = _reason(status)
            _log.warning("%s (process %d) ended: %s", child_name(number), pid, ended[number])
        return ended

    def start_again(self, number: int) -> None:
        """Schedule the restart of a process: at once, or after a delay if it died young."""
        lived = monotonic() - self._started[number]
        delay = _BACK_OFF_SECONDS if lived < _YOUNG_SECONDS else 0.0
        self._due[number] = monotonic() + delay

    def start_due(self) -> None:
        """Start the processes whose restart is due."""
        for number in [n for n, due in self._due.items() if due <= monotonic()]:
            self.start(number)

    def signal(self, number: int, what: int) -> None:
        """Send a process a signal, if it is running."""
        for pid, other in self._numbers.items():
            if other == number:
                os.kill(pid, what)

    def end(self, number: int) -> None:
        """Signal a process to drain and end, even if it is stopped by SIGSTOP."""
        self.signal(number, END)
        self.signal(number, signal.SIGCONT)

    def wait(
        self,
        numbers: set[int],
        seconds: float,
        hopeless: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """Wait for processes to end; kill them after `seconds`, and hopeless ones at once."""
        end = monotonic() + seconds
        while numbers & self.numbers:
            for number in numbers if monotonic() > end else numbers & set(hopeless()):
                _log.warning("%s does not end and is killed", child_name(number))
                self.signal(number, signal.SIGKILL)
            signal.sigtimedwait([signal.SIGCHLD], POLL_SECONDS)
            while self._numbers:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                self._numbers.pop(pid)


def _become_child(parent: int, run: Callable[[], None]) -> None:
    code = 1
    try:
        # If the parent is killed, the kernel signals this process to drain and end.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, END)
        if os.getppid() != parent:
            os._exit(1)
        # Ctrl-C reaches every process of a terminal, SIGTERM every process of a service. Only the
        # parent acts on them.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        run()
        code = 0
    except ShardedInferError as error:
        _log.error("error: %s", error)
    except BaseException:
        _log.exception("internal error in a worker process")
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """End this process at once, without waiting for its threads."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def next_signal(signals: Iterable[int], seconds: float) -> int | None:
    """Wait for one of several signals that this process has blocked; None after `seconds`.

    The result of `sigtimedwait` alone is not reliable. If the process was stopped for longer than
    the timeout, CPython (3.11 to 3.13) returns uninitialized memory.
    """
    end = monotonic() + seconds
    while not (pending := signal.sigpending() & set(signals)):
        if (left := end - monotonic()) <= 0:
            return None
        sleep(min(left, POLL_SECONDS))
    came = signal.sigtimedwait(pending, 0)
    return None if came is None else came.si_signo


def child_name(number: int) -> str:
    """Name of a process in the log."""
    return _NAMES.get(number, f"worker {number}")


def _reason(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"


class SilenceWatch:
    """Kills processes that hang; the code that reaps them restarts them."""

    def __init__(self, children: ChildProcesses, state: ServerState, limit_seconds: float) -> None:
        self._children = children
        self._state = state
        self._limit = limit_seconds
        self._silence = Silence(_MOST_POLLS * POLL_SECONDS)

    def end_silent(self) -> None:
        """Mark silent workers, and kill processes that have been silent for too long."""
        if not self._limit:
            return
        for number, seconds in self._look().items():
            if number >= 0:
                self._state.set_silent(number, seconds >= _SILENT_SHARE * self._limit)
            if seconds >= self._limit:
                _log.error(
                    "%s gave no sign of life for %.3g s: it is killed", child_name(number), seconds
                )
                self._children.signal(number, signal.SIGKILL)
                self._silence.forget(number)

    def hopeless(self) -> list[int]:
        """Processes that have been silent for too long to end by themselves."""
        if not self._limit:
            return []
        limit = min(self._limit, _END_SECONDS)
        return [number for number, seconds in self._look().items() if seconds >= limit]

    def _look(self) -> dict[int, float]:
        counts = {n: self._state.heartbeats.count(n) for n in self._children.numbers}
        return dict(self._silence.look(counts, monotonic()))
