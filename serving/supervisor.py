"""Many processes on one port: loads once, forks, and replaces whoever dies.

    parent      loads the models, then only forks and waits: it has no threads, so forking is safe
    desk        answers HTTP while no worker does: while models load, and when all have died
    follower    looks for new versions, fetches and verifies them, says what workers are to hold
    workers     answer RPCs and HTTP; they share the gRPC port (SO_REUSEPORT), the HTTP port's one
                listening socket, and every page the parent has read

Workers are forked after the load and before any gRPC object exists (gRPC does not survive a fork).
"""

import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from serving.address import split_address
from serving.background import lower_priority
from serving.child_processes import (
    DESK,
    END,
    FOLLOWER,
    POLL_SECONDS,
    SIGNALS,
    ChildProcesses,
    child_name,
    next_signal,
)
from serving.config import ServerConfig
from serving.dashboard.dashboard import Dashboard
from serving.following import Following
from serving.guard import Guard, make_guard
from serving.held_port import hold_port
from serving.logs import name_process
from serving.metrics import Metrics
from serving.model_store import ModelStore
from serving.pages import Pages, http_door, http_limits, listen
from serving.rest.rest_api import RestApi
from serving.server_state import ServerState
from serving.silence_watch import SilenceWatch
from serving.tls import tls_files
from serving.transport import check_transport
from serving.worker import Worker
from sharded_infer.errors import InputError

_log = logging.getLogger("sharded_infer")
# Beyond the draining time, before a worker is killed.
_PATIENCE_SECONDS = 5.0
_HEALTH_SECONDS = 0.2
_ENDING = (signal.SIGTERM, signal.SIGINT)


def supervise(
    config: ServerConfig,
    store: ModelStore,
    metrics: Metrics,
    state: ServerState,
    *,
    following: Following,
    load: Callable[[], object],
    on_ready: Callable[[int, int], None],
) -> None:
    """Serves with several processes until SIGTERM or SIGINT; then drains and returns.

    Args:
        config: the server's settings.
        store: filled by `load`.
        metrics: the server's; nothing of them has been used yet.
        state: the server's.
        following: of the repository.
        load: loads the models, in this process.
        on_ready: told the gRPC and metrics ports when every worker answers.

    Raises:
        InputError: a port cannot be had, the transport lacks what is configured, or a worker cannot
            start.
    """
    check_transport(config)
    held = hold_port(config.host, config.port)
    port: int = held.getsockname()[1]
    held_admin = None
    if config.admin_address is not None:
        held_admin = hold_port(*split_address(config.admin_address))
    listener = listen(config.host, config.metrics_port)
    handlers = _hold_signals()

    def open_pages(own: socket.socket, api: RestApi | None, guard: Guard | None) -> Pages:
        board = following.board
        dashboard = Dashboard(metrics.registry, state, board, topology=config.topology)
        return Pages(
            own,
            metrics,
            state,
            dashboard,
            api=api,
            limits=http_limits(config),
            door=http_door(config, guard),
            tls=tls_files(config),
            missing=following.missing,
        )

    def run(number: int) -> None:
        name_process(child_name(number))
        if number == DESK:
            state.heartbeats.start(number, _always)
            store.clear()
            guard = make_guard(config)
            _run_desk(state, guard, lambda: open_pages(listener.dup(), None, guard))
            return
        if number == FOLLOWER:
            state.heartbeats.start(number, _always)
            listener.close()
            store.clear()
            _run_follower(following)
            return
        # torch renews its thread pool at the first use after a fork, without a lock: threads that
        # came to it together could find none.
        torch.set_num_threads(1)
        metrics.use(number)
        worker = Worker(config, store, metrics, state, following.board, number)
        state.heartbeats.start(number, worker.goes_on)
        _run_worker(
            worker,
            following,
            store,
            number=number,
            port=port,
            open_pages=lambda: open_pages(listener, worker.rest, worker.guard),
        )

    children = ChildProcesses(run)
    workers = set(range(config.workers))
    try:
        # Says "loading" while the models load.
        children.start(DESK)
        load()
        # What is loaded stays: no collection shall look at it, and copy its pages.
        gc.collect()
        gc.freeze()
        following.board.detach(0)
        for number in (FOLLOWER, *sorted(workers)):
            children.start(number)
        parent = _Parent(config, children, store, metrics, state, following)
        parent.look_after(lambda: on_ready(port, listener.getsockname()[1]))
        _log.info("not ready any more; answering for another %g s", config.grace_seconds)
        # A second signal does not wait for the rest.
        next_signal(_ENDING, config.grace_seconds)
    finally:
        state.drain()
        for number in (FOLLOWER, *workers):
            children.end(number)
        watch = SilenceWatch(children, state, config.heartbeat_seconds)
        children.wait(workers, config.drain_seconds + _PATIENCE_SECONDS, watch.hopeless)
        children.end(DESK)
        children.wait({DESK, FOLLOWER}, _PATIENCE_SECONDS)
        listener.close()
        held.close()
        if held_admin is not None:
            held_admin.close()
        _release_signals(handlers)


def _hold_signals() -> dict[int, Any]:
    """Blocks the signals that are waited for; the handlers of before."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # Threads that libraries started before have not blocked them.
    return {number: signal.signal(number, _leave_to_main) for number in _ENDING}


def _release_signals(handlers: dict[int, Any]) -> None:
    # One that waits still must not end this process otherwise than it ends.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while next_signal(_ENDING, 0.0) is not None:
        pass
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _leave_to_main(number: int, _frame: FrameType | None) -> None:
    """Has a signal wait for the main thread, which has blocked it, where another was handed it."""
    signal.pthread_kill(threading.get_ident(), number)


class _Parent:
    """Replaces whoever dies, and lets go what nobody needs any more."""

    def __init__(
        self,
        config: ServerConfig,
        children: ChildProcesses,
        store: ModelStore,
        metrics: Metrics,
        state: ServerState,
        following: Following,
    ) -> None:
        self._children = children
        self._watch = SilenceWatch(children, state, config.heartbeat_seconds)
        self._store = store
        self._metrics = metrics
        self._state = state
        self._board = following.board
        self._seen = self._board.sequence

    def look_after(self, on_started: Callable[[], None]) -> None:
        """Until a signal ends the server; told once when every worker answers."""
        started = False
        while True:
            came = next_signal(SIGNALS, POLL_SECONDS)
            if came == signal.SIGHUP:
                self._state.ask_reload()
                self._children.signal(FOLLOWER, signal.SIGHUP)
            elif came in _ENDING:
                self._state.drain()
                return
            for number in self._children.reap():
                if number >= 0:
                    self._bury(number, started)
                self._children.start_again(number)
            self._watch.end_silent()
            self._let_go()
            self._children.start_due()
            if not started and self._state.started:
                # Each worker's health service follows within its poll.
                time.sleep(_HEALTH_SECONDS)
                started = True
                on_started()

    def _bury(self, worker: int, started: bool) -> None:
        self._state.set_serving(worker, False)
        self._state.set_silent(worker, False)
        self._board.detach(worker)
        self._metrics.worker_died(worker)
        if not started:
            raise InputError(f"{child_name(worker)} could not start; its error is above")
        self._metrics.worker_restarted()

    def _let_go(self) -> None:
        """Drops what is not held any more: workers forked from now on load what is."""
        if self._board.sequence == self._seen:
            return
        self._seen, releases = self._board.releases()
        self._store.offer({})
        self._store.drop((m.model, h.version) for m in releases.models.values() for h in m.held)


def _always() -> bool:
    return True


def _run_desk(state: ServerState, guard: Guard | None, open_pages: Callable[[], Pages]) -> None:
    stop = _stop_event()
    pages: Pages | None = None
    reloads = state.reloads
    while True:
        if pages is None and not state.serving:
            state.set_desk_open(True)
            pages = open_pages()
        elif pages is not None and state.serving:
            pages.stop_accepting()
            state.set_desk_open(False)
            pages.close()
            pages = None
        if guard is not None and state.reloads != reloads:
            reloads = state.reloads
            guard.reload()
        if stop.wait(POLL_SECONDS):
            break
    if pages is not None:
        pages.close()


def _run_follower(following: Following) -> None:
    # Waited for below, not handled: a handler must not come between the locks of an event.
    signal.pthread_sigmask(signal.SIG_BLOCK, (END, signal.SIGHUP))
    stop, asked = threading.Event(), threading.Event()
    lower_priority()
    run = following.follower().run
    thread = threading.Thread(target=run, args=(stop, asked), name="follower", daemon=True)
    thread.start()
    while thread.is_alive():
        came = next_signal((END, signal.SIGHUP), POLL_SECONDS)
        if came == END:
            return
        if came == signal.SIGHUP:
            asked.set()


def _run_worker(
    worker: Worker,
    following: Following,
    store: ModelStore,
    *,
    number: int,
    port: int,
    open_pages: Callable[[], Pages],
) -> None:
    stop = _stop_event()
    installer = following.installer(store, number)
    installer.catch_up()
    worker.warm_up()
    # What came meanwhile.
    installer.catch_up()
    installer.check_complete()
    worker.listen(port)
    installer.start()
    pages = open_pages()
    try:
        worker.serve(stop)
    finally:
        installer.stop()
        pages.close()


def _stop_event() -> threading.Event:
    stop = threading.Event()
    signal.signal(END, lambda *_: stop.set())
    return stop
