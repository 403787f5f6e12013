"""Many processes on one port: loads once, forks, and replaces whoever dies.

    parent      loads the models, then only forks and waits: it has no threads, so forking is safe
    desk        answers /metrics, /ready and /live for all
    workers     answer RPCs; they share the port (SO_REUSEPORT) and every page the parent has read

Workers are forked after the load and before any gRPC object exists (gRPC does not survive a fork).
"""

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from time import monotonic

import torch

from serving.config import ServerConfig
from serving.metrics import Metrics
from serving.model_store import ModelStore
from serving.pages import Pages, listen
from serving.server_state import ServerState
from serving.transport import check_transport
from serving.worker import Worker
from sharded_infer.errors import InputError, ShardedInferError

_log = logging.getLogger("sharded_infer")
_POLL_SECONDS = 0.05
# A process that dies sooner than this after its start is not started again at once.
_YOUNG_SECONDS = 1.0
_BACK_OFF_SECONDS = 1.0
# Beyond the draining time, before a worker is killed.
_PATIENCE_SECONDS = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_END = signal.SIGUSR1  # from the parent: drain and end
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_DESK = -1
_HEALTH_SECONDS = 0.2


class _Children:
    """The server's other processes, by number: workers from 0, and the desk."""

    def __init__(self, run: Callable[[int], None]) -> None:
        self._run = run
        self._numbers: dict[int, int] = {}  # by process id
        self._started: dict[int, float] = {}  # by number
        self._due: dict[int, float] = {}  # by number: when to be started again

    def start(self, number: int) -> None:
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
            _log.warning("%s (process %d) ended: %s", _name(number), pid, _reason(status))
            ended.append(number)
        return ended

    def start_again(self, number: int) -> None:
        """Starts one that has ended: at once, or in a while if it hardly lived."""
        lived = monotonic() - self._started[number]
        delay = _BACK_OFF_SECONDS if lived < _YOUNG_SECONDS else 0.0
        self._due[number] = monotonic() + delay

    def start_due(self) -> None:
        for number in [n for n, due in self._due.items() if due <= monotonic()]:
            self.start(number)

    def signal(self, number: int, what: int) -> None:
        for pid, other in self._numbers.items():
            if other == number:
                os.kill(pid, what)

    def wait(self, numbers: set[int], seconds: float) -> None:
        """Until some have ended; those that have not by then are killed."""
        end = monotonic() + seconds
        while numbers & set(self._numbers.values()):
            if monotonic() > end:
                for number in numbers:
                    self.signal(number, signal.SIGKILL)
            signal.sigtimedwait([signal.SIGCHLD], _POLL_SECONDS)
            while self._numbers:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                self._numbers.pop(pid)


def supervise(
    config: ServerConfig,
    store: ModelStore,
    metrics: Metrics,
    state: ServerState,
    *,
    load: Callable[[], None],
    on_ready: Callable[[int, int], None],
) -> None:
    """Serves with several processes until SIGTERM or SIGINT; then drains and returns.

    Args:
        config: the server's settings.
        store: filled by `load`.
        metrics: the server's; nothing of them has been used yet.
        state: the server's.
        load: loads the models, in this process.
        on_ready: told the gRPC and metrics ports when every worker answers.

    Raises:
        InputError: a port cannot be had, the transport lacks what is configured, or a worker cannot
            start.
    """
    check_transport(config)
    held = _hold_port(config.host, config.port)
    port: int = held.getsockname()[1]
    listener = listen(config.host, config.metrics_port)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def run(number: int) -> None:
        if number == _DESK:
            _run_desk(listener, metrics, state)
        else:
            listener.close()
            _run_worker(config, store, metrics, state, number, port)

    children = _Children(run)
    workers = set(range(config.workers))
    try:
        # Says "loading" while the models load; its successor knows their metrics.
        children.start(_DESK)
        load()
        children.signal(_DESK, _END)
        children.wait({_DESK}, _PATIENCE_SECONDS)
        # What is loaded stays: no collection shall look at it, and copy its pages.
        gc.collect()
        gc.freeze()
        children.start(_DESK)
        for number in sorted(workers):
            children.start(number)
        _look_after(children, metrics, state, lambda: on_ready(port, listener.getsockname()[1]))
        _log.info("not ready any more; answering for another %g s", config.grace_seconds)
        _sleep(config.grace_seconds)
    finally:
        state.drain()
        for number in workers:
            children.signal(number, _END)
        children.wait(workers, config.drain_seconds + _PATIENCE_SECONDS)
        children.signal(_DESK, _END)
        children.wait({_DESK}, _PATIENCE_SECONDS)
        listener.close()
        held.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _look_after(
    children: _Children, metrics: Metrics, state: ServerState, on_started: Callable[[], None]
) -> None:
    """Replaces whoever dies, until a signal ends the server."""
    started = False
    while True:
        came = signal.sigtimedwait(_SIGNALS, _POLL_SECONDS)
        if came is not None and came.si_signo != signal.SIGCHLD:
            state.drain()
            return
        for number in children.reap():
            if number != _DESK:
                state.set_serving(number, False)
                metrics.worker_died(number)
                if not started:
                    raise InputError(f"{_name(number)} could not start; its error is above")
                metrics.worker_restarted()
            children.start_again(number)
        children.start_due()
        if not started and state.started:
            # Each worker's health service follows within its poll.
            time.sleep(_HEALTH_SECONDS)
            started = True
            on_started()


def _sleep(seconds: float) -> None:
    end = monotonic() + seconds
    while (left := end - monotonic()) > 0:
        # A second signal does not wait for the rest.
        came = signal.sigtimedwait((signal.SIGTERM, signal.SIGINT), left)
        if came is not None:
            return


def _become_child(parent: int, run: Callable[[], None]) -> None:
    code = 1
    try:
        # Nobody answers for a parent that was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _END)
        if os.getppid() != parent:
            os._exit(1)
        # Ctrl-C reaches every process of a terminal, SIGTERM every process of a service: the parent
        # alone decides.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        run()
        code = 0
    except ShardedInferError as error:
        sys.stderr.write(f"error: {error}\n")
    except BaseException:
        _log.exception("internal error in a worker process")
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_desk(listener: socket.socket, metrics: Metrics, state: ServerState) -> None:
    stop = _stop_event()
    pages = Pages(listener, metrics, state)
    while not stop.wait(_POLL_SECONDS):
        pass
    pages.shutdown()


def _run_worker(
    config: ServerConfig,
    store: ModelStore,
    metrics: Metrics,
    state: ServerState,
    number: int,
    port: int,
) -> None:
    stop = _stop_event()
    # torch renews its thread pool at the first use after a fork, without a lock: threads that came
    # to it together could find none.
    torch.set_num_threads(1)
    metrics.use(number)
    worker = Worker(config, store, metrics, state, number)
    worker.warm_up()
    worker.listen(port)
    worker.serve(stop)


def _stop_event() -> threading.Event:
    stop = threading.Event()
    signal.signal(_END, lambda *_: stop.set())
    return stop


def _hold_port(host: str, port: int) -> socket.socket:
    """A socket that keeps the port for the workers, and never listens itself.

    Raises:
        InputError: another process has the port.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Another server's workers would let us in with SO_REUSEPORT, and share its clients.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            held.bind(address)
        except OSError:
            # The port remembers connections that a server before us has closed, for a minute. With
            # SO_REUSEADDR left on, another server's probe would pass while our workers start.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(address)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        held.close()
        raise InputError(f"port {host}:{port} cannot be had: {error.strerror}") from error
    return held


def _name(number: int) -> str:
    return "the metrics process" if number == _DESK else f"worker {number}"


def _reason(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"
