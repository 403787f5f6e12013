"""Processes forked from one that has no threads: started, reaped, started again.

A process that dies soon after its start is started again in a while, not at once.
"""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable
from time import monotonic, sleep
from typing import NoReturn

from sharded_infer.errors import ShardedInferError

_log = logging.getLogger("sharded_infer")
POLL_SECONDS = 0.05
# A process that dies sooner than this after its start is not started again at once.
_YOUNG_SECONDS = 1.0
_BACK_OFF_SECONDS = 1.0
# Blocked in the parent, which waits for them.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)
END = signal.SIGUSR1  # from the parent: drain and end
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
DESK, FOLLOWER = -1, -2
_NAMES = {DESK: "the metrics process", FOLLOWER: "the follower"}


class ChildProcesses:
    """The server's other processes, by number: workers from 0, others below."""

    def __init__(self, run: Callable[[int], None]) -> None:
        """Begins with none.

        Args:
            run: what the process of a number does, until it ends.
        """
        self._run = run
        self._numbers: dict[int, int] = {}  # by process id
        self._started: dict[int, float] = {}  # by number
        self._due: dict[int, float] = {}  # by number: when to be started again

    @property
    def numbers(self) -> set[int]:
        """Of those that run."""
        return set(self._numbers.values())

    def start(self, number: int) -> None:
        """Forks the process of a number."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._due.pop(number, None)
        self._started[number] = monotonic()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_child(parent, lambda: self._run(number))
        self._numbers[pid] = number

    def reap(self) -> list[int]:
        """The numbers of those that have ended since."""
        ended = []
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            number = self._numbers.pop(pid)
            _log.warning("%s (process %d) ended: %s", child_name(number), pid, _reason(status))
            ended.append(number)
        return ended

    def start_again(self, number: int) -> None:
        """Starts one that has ended: at once, or in a while if it hardly lived."""
        lived = monotonic() - self._started[number]
        delay = _BACK_OFF_SECONDS if lived < _YOUNG_SECONDS else 0.0
        self._due[number] = monotonic() + delay

    def start_due(self) -> None:
        """Starts those whose time has come again."""
        for number in [n for n, due in self._due.items() if due <= monotonic()]:
            self.start(number)

    def signal(self, number: int, what: int) -> None:
        """Sends a process a signal, if it lives."""
        for pid, other in self._numbers.items():
            if other == number:
                os.kill(pid, what)

    def end(self, number: int) -> None:
        """Asks a process to drain and end, one that was stopped too."""
        self.signal(number, END)
        self.signal(number, signal.SIGCONT)

    def wait(
        self,
        numbers: set[int],
        seconds: float,
        hopeless: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """Until some have ended; those that have not by then are killed.

        Args:
            numbers: of the processes.
            seconds: the time that they have.
            hopeless: those that will not end by themselves.
        """
        end = monotonic() + seconds
        while numbers & self.numbers:
            for number in numbers if monotonic() > end else numbers & set(hopeless()):
                _log.warning("%s does not end: it is killed", child_name(number))
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
        # Nobody answers for a parent that was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, END)
        if os.getppid() != parent:
            os._exit(1)
        # Ctrl-C reaches every process of a terminal, SIGTERM every process of a service: the parent
        # alone decides.
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
    """Ends this process at once, whatever its threads do."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def next_signal(signals: Iterable[int], seconds: float) -> int | None:
    """One of some signals that this process has blocked; None: none came in time.

    `sigtimedwait` alone is not to be believed: in a process that was stopped for longer than its
    timeout, CPython (3.11 to 3.13) returns whatever lay on the stack.

    Args:
        signals: to wait for.
        seconds: to wait.
    """
    end = monotonic() + seconds
    while not (pending := signal.sigpending() & set(signals)):
        if (left := end - monotonic()) <= 0:
            return None
        sleep(min(left, POLL_SECONDS))
    came = signal.sigtimedwait(pending, 0)
    return None if came is None else came.si_signo


def child_name(number: int) -> str:
    """What a process is called in the log."""
    return _NAMES.get(number, f"worker {number}")


def _reason(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"
