"""Several processes on one port: loads models once, forks, and replaces processes that die.

    parent              loads the models, then only forks and waits; it has no threads, so forking
                        is safe
    standby process     answers HTTP while no worker does: while models load, and after all workers
                        have died
    repository watcher  looks for new versions, fetches and verifies them, and says which versions
                        workers are to hold
    workers             answer RPCs and HTTP; they share the gRPC port (SO_REUSEPORT), the HTTP
                        port's one listening socket, and every page that the parent has read

Workers are forked after the load and before any gRPC object exists (gRPC does not survive a fork).
"""

import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from serving.config.server_config import ServerConfig
from serving.control.server_state import ServerState
from serving.dashboard.dashboard import Dashboard
from serving.host.addresses import split_address
from serving.host.background import lower_priority
from serving.host.listeners import hold_port
from serving.host.signal_flag import SignalFlag
from serving.http_api.api import RestApi
from serving.http_api.http_server import HttpServer, http_limits, listen
from serving.metrics.families.server_families import WORKER_RESTARTS
from serving.metrics.server_metrics import ServerMetrics
from serving.observability.log_lines import name_process
from serving.process.child_processes import (
    END,
    POLL_SECONDS,
    SIGNALS,
    STANDBY,
    WATCHER,
    ChildProcesses,
    SilenceWatch,
    child_name,
    next_signal,
)
from serving.process.unix_sockets import UnixSockets
from serving.process.worker import Worker
from serving.security.guard import Guard, make_guard
from serving.security.tls import tls_files
from serving.versions.served_versions import ServedVersions
from serving.versions.version_manager import VersionManager
from sharded_infer.errors import InputError

_log = logging.getLogger("sharded_infer")
# Seconds after the draining time before a worker is killed.
_PATIENCE_SECONDS = 5.0
_ENDING = (signal.SIGTERM, signal.SIGINT)


def supervise(
    config: ServerConfig,
    store: ServedVersions,
    metrics: ServerMetrics,
    state: ServerState,
    *,
    manager: VersionManager,
    sockets: UnixSockets,
    make_worker: Callable[[int], Worker],
    load: Callable[[], object],
    on_ready: Callable[[int, int], None],
    hosts: Callable[[], list[dict[str, Any]]],
) -> None:
    """Serve with several processes until SIGTERM or SIGINT; then drain and return.

    Args:
        metrics: not used by any process yet.
        make_worker: makes the worker with this number, in its own process.
        load: loads the models, in this process, into `store`.
        on_ready: called with the gRPC and HTTP ports when every worker answers.

    Raises:
        InputError: a port is not available, or a worker cannot start.
    """
    assigned = hold_port(config.host, config.port)
    port = assigned.port
    held_admin = None
    if config.admin_address is not None and config.admin_socket is None:
        held_admin = hold_port(*split_address(config.admin_address))
    listeners = [*listen(config.host, config.http_port), *sockets.http_listeners()]
    handlers = _hold_signals()

    def open_http_server(
        own: list[socket.socket], api: RestApi | None, guard: Guard | None
    ) -> HttpServer:
        shared_state = manager.shared_state
        dashboard = Dashboard(
            metrics.registry, state, shared_state, topology=config.topology, hosts=hosts
        )
        return HttpServer(
            own,
            metrics,
            state,
            dashboard,
            api=api,
            limits=http_limits(config),
            guard=guard,
            admin_elsewhere=config.admin_address is not None,
            tls=tls_files(config),
            missing=manager.missing,
        )

    def run(number: int) -> None:
        name_process(child_name(number))
        if number in (STANDBY, WATCHER):
            sockets.close_grpc()
        if number == STANDBY:
            state.heartbeats.start(number, _always)
            store.clear()
            guard = make_guard(config)
            _run_standby(
                state,
                guard,
                lambda: open_http_server([one.dup() for one in listeners], None, guard),
            )
            return
        if number == WATCHER:
            state.heartbeats.start(number, _always)
            _close(listeners)
            store.clear()
            _run_watcher(manager)
            return
        # torch renews its thread pool at the first use after a fork, without a lock. Threads that
        # use it at the same moment could get none.
        torch.set_num_threads(1)
        metrics.use(number)
        worker = make_worker(number)
        state.heartbeats.start(number, worker.goes_on)
        _run_worker(
            worker,
            manager,
            store,
            number=number,
            port=port,
            open_http_server=lambda: open_http_server(listeners, worker.rest, worker.guard),
        )

    children = ChildProcesses(run)
    workers = set(range(config.workers))
    try:
        # Reports "loading" while the models load.
        children.start(STANDBY)
        load()
        # Loaded objects stay: a garbage collection that visits them would copy their pages.
        gc.collect()
        gc.freeze()
        manager.shared_state.detach(0, "")
        for number in (WATCHER, *sorted(workers)):
            children.start(number)
        parent = _Parent(config, children, store, metrics, state, manager)
        parent.look_after(lambda: on_ready(port, listeners[0].getsockname()[1]))
        _log.info("no longer ready; answering for another %g s", config.grace_seconds)
        # A second signal ends the wait.
        next_signal(_ENDING, config.grace_seconds)
    finally:
        state.drain()
        # Clients would wait for a socket without accepts.
        sockets.close_grpc()
        for number in (WATCHER, *workers):
            children.end(number)
        watch = SilenceWatch(children, state, config.heartbeat_seconds)
        children.wait(workers, config.drain_seconds + _PATIENCE_SECONDS, watch.hopeless)
        children.end(STANDBY)
        children.wait({STANDBY, WATCHER}, _PATIENCE_SECONDS)
        _close(listeners)
        assigned.close()
        if held_admin is not None:
            held_admin.close()
        _release_signals(handlers)


def _close(listeners: list[socket.socket]) -> None:
    for one in listeners:
        one.close()


def _hold_signals() -> dict[int, Any]:
    """Block the signals that the parent waits for, and return the previous handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # Threads that libraries started earlier have not blocked them.
    return {number: signal.signal(number, _leave_to_main) for number in _ENDING}


def _release_signals(handlers: dict[int, Any]) -> None:
    # A signal that is still pending must not kill this process when it is unblocked.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while next_signal(_ENDING, 0.0) is not None:
        pass
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _leave_to_main(number: int, _frame: FrameType | None) -> None:
    """Forward a signal that another thread received to the main thread, which has blocked it."""
    signal.pthread_kill(threading.get_ident(), number)


class _Parent:
    """Replaces processes that die, and drops versions that are no longer held."""

    def __init__(
        self,
        config: ServerConfig,
        children: ChildProcesses,
        store: ServedVersions,
        metrics: ServerMetrics,
        state: ServerState,
        manager: VersionManager,
    ) -> None:
        self._children = children
        self._watch = SilenceWatch(children, state, config.heartbeat_seconds)
        self._store = store
        self._metrics = metrics
        self._state = state
        self._shared_state = manager.shared_state
        self._seen = self._shared_state.sequence

    def look_after(self, on_started: Callable[[], None]) -> None:
        """Run until a signal ends the server; call `on_started` when every worker answers."""
        started = False
        while True:
            came = next_signal(SIGNALS, POLL_SECONDS)
            if came == signal.SIGHUP:
                self._state.ask_reload()
                self._children.signal(WATCHER, signal.SIGHUP)
            elif came in _ENDING:
                self._state.drain()
                return
            for number, reason in self._children.reap().items():
                if number >= 0:
                    self._handle_exit(number, reason, started)
                self._children.start_again(number)
            self._watch.end_silent()
            self._unload()
            self._children.start_due()
            if not started and self._state.healthy:
                started = True
                on_started()

    def _handle_exit(self, worker: int, reason: str, started: bool) -> None:
        self._state.set_serving(worker, False)
        self._state.set_silent(worker, False)
        self._shared_state.detach(worker, f"{child_name(worker)} ended ({reason})")
        self._metrics.worker_died(worker)
        if not started:
            raise InputError(f"{child_name(worker)} could not start; its error is above")
        self._metrics.add(WORKER_RESTARTS)

    def _unload(self) -> None:
        """Drop versions that are no longer held. Workers forked later load the current versions."""
        if self._shared_state.sequence == self._seen:
            return
        self._seen, releases = self._shared_state.releases()
        self._store.offer({})
        self._store.drop((m.model, h.version) for m in releases.models.values() for h in m.assigned)


def _always() -> bool:
    return True


def _run_standby(
    state: ServerState, guard: Guard | None, open_http_server: Callable[[], HttpServer]
) -> None:
    stop = _stop_flag()
    http_server: HttpServer | None = None
    reloads = state.reloads
    while True:
        if http_server is None and not state.serving:
            state.set_standby_open(True)
            http_server = open_http_server()
        elif http_server is not None and state.serving:
            http_server.stop_accepting()
            state.set_standby_open(False)
            http_server.close()
            http_server = None
        if guard is not None and state.reloads != reloads:
            reloads = state.reloads
            guard.reload()
        if stop.wait(POLL_SECONDS):
            break
    if http_server is not None:
        http_server.close()


def _run_watcher(manager: VersionManager) -> None:
    # Waited for below instead of handled: the thread does the work.
    signal.pthread_sigmask(signal.SIG_BLOCK, (END, signal.SIGHUP))
    stop, asked = SignalFlag(), SignalFlag()
    lower_priority()
    run = manager.watcher().run
    thread = threading.Thread(target=run, args=(stop, asked), name="watcher", daemon=True)
    thread.start()
    while thread.is_alive():
        came = next_signal((END, signal.SIGHUP), POLL_SECONDS)
        if came == END:
            return
        if came == signal.SIGHUP:
            asked.set()


def _run_worker(
    worker: Worker,
    manager: VersionManager,
    store: ServedVersions,
    *,
    number: int,
    port: int,
    open_http_server: Callable[[], HttpServer],
) -> None:
    stop = _stop_flag()
    installer = manager.installer(store, number)
    installer.catch_up()
    worker.warm_up()
    # Changes that arrived during the warm-up.
    installer.catch_up()
    installer.check_complete()
    worker.listen(port)
    installer.start()
    http_server = open_http_server()
    try:
        worker.serve(stop)
    finally:
        installer.stop()
        http_server.close()


def _stop_flag() -> SignalFlag:
    stop = SignalFlag()
    signal.signal(END, lambda *_: stop.set())
    return stop
