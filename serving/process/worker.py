"""A process that answers requests: its listeners and threads, readiness and draining."""

import gc
import logging
import math
import os
import resource
import signal
from collections.abc import Callable
from random import Random
from time import monotonic, process_time, sleep
from typing import TYPE_CHECKING, Protocol

from serving.config.server_config import ServerConfig
from serving.control.control_plane import ControlPlane
from serving.control.model_control import ModelControl
from serving.control.server_state import ServerState
from serving.grpc_api.grpc_server import GrpcServer
from serving.host.cores import slots_of
from serving.host.malloc import FreedMemory
from serving.host.signal_flag import SignalFlag
from serving.http_api.api import RestApi
from serving.http_api.operations.model_api import ModelApi
from serving.http_api.predictions import Predictions
from serving.inference.data_plane import DataPlane
from serving.inference.request_reports import RequestReports
from serving.inference.shadows.shadows import Shadows
from serving.metrics.families.server_families import MINOR_FAULTS, RECORDED
from serving.metrics.server_metrics import ServerMetrics
from serving.observability.log_levels import LogControl
from serving.process.process_sampler import ProcessSampler
from serving.process.unix_sockets import UnixSockets
from serving.scheduler.batch_threads import BatchThreads
from serving.scheduler.scheduler import QueueLimits
from serving.security.guard import make_guard
from serving.shared_memory.regions import SharedMemory
from serving.versions.served_versions import ServedVersions
from serving.versions.shared_state import SharedState

if TYPE_CHECKING:
    from serving.observability.tracer import Tracer
    from serving.recording.recorder import Recorder

_log = logging.getLogger("sharded_infer")
_POLL_SECONDS = 0.1
# To write what waits to be recorded, at the end.
_RECORDER_SECONDS = 30.0


class Listener(Protocol):
    """A source of calls to a process."""

    def drain(self) -> None:
        """Accept no long-lived work; open work ends as soon as it is answered."""
        ...

    def stop(self, seconds: float) -> None:
        """Accept no calls; return when all are answered or the time is up."""
        ...


class Worker:
    """The request side of a process. Create it after any fork: gRPC does not survive one."""

    def __init__(
        self,
        config: ServerConfig,
        store: ServedVersions,
        metrics: ServerMetrics,
        state: ServerState,
        shared_state: SharedState,
        number: int = 0,
        *,
        logs: LogControl,
        memory: SharedMemory | None,
        sockets: UnixSockets | None = None,
    ) -> None:
        """Prepare the listeners; `listen` starts them.

        Args:
            store: holds the loaded versions; models may be loaded later.
            number: the worker's, from 0.
            logs: log levels of all processes.
            memory: shared memory that clients have registered; None if it is not offered.
            sockets: additional addresses.
        """
        self._config = config
        self._store = store
        self._metrics = metrics
        self._state = state
        self._number = number
        self._tracer: Tracer | None = None
        if config.tracing is not None:
            # Imported here: a server without traces saves 15 MiB and a fifth of a second.
            from serving.observability.tracer import start_tracing

            place = {"worker": number}
            self._tracer = start_tracing(config.tracing, place, metrics.traces_dropped)
        data_plane = DataPlane(
            store,
            metrics,
            slots=config.slots or slots_of(config.workers),
            limits=QueueLimits(
                config.max_queue_requests, config.max_queue_samples, config.max_queue_bytes
            ),
            memory=memory,
            reports=_reports(config, self._tracer),
            shadows=_shadows(config),
        )
        self._data_plane = data_plane
        self._recorder = _recorder(config, data_plane, metrics)
        # Last pass of the main thread through its loop; infinity outside the loop.
        self._came_round = math.inf
        self._disk_reads = 0
        self.guard = make_guard(config)
        self._reloads = state.reloads
        # The server's first process notifies the repository watcher.
        first = os.getpid() if config.workers == 1 else os.getppid()
        plane = ControlPlane(
            store,
            lambda: state.ready,
            logs,
            models=ModelControl(shared_state, config.follow) if config.explicit else None,
            look=lambda: os.kill(first, signal.SIGHUP),
            memory=memory,
            max_batch=config.max_batch,
        )

        def wake() -> None:
            self._batch_threads.wake()

        self._grpc = GrpcServer(
            config,
            data_plane,
            plane,
            guard=self.guard,
            unix_socket=None if sockets is None else sockets.grpc,
            admin_socket=None if sockets is None else sockets.admin,
        )
        predictions = Predictions(config, data_plane, wake)
        # The inference protocol over HTTP.
        self.rest = RestApi(ModelApi(plane), predictions)
        self._listeners: tuple[Listener, ...] = (self._grpc, self.rest)
        self._batch_threads = BatchThreads(data_plane.dispatcher)

    def listen(self, port: int) -> int:
        """Start to answer RPCs, and return the port (0: a free one); InputError if taken."""
        return self._grpc.listen(port)

    def warm_up(self) -> None:
        """Map every version's tables, and run it on each thread that will run batches."""
        self._store.map_tables()
        self._grpc.warm(self._store.warm_up)
        self.rest.warm(self._store.warm_up)
        self._batch_threads.start(self._store.warm_up)
        if self._data_plane.shadow_thread is not None:
            self._data_plane.shadow_thread.start(self._store.warm_up)
        if self._recorder is not None:
            self._recorder.start()

    def serve(
        self,
        stop: SignalFlag,
        *,
        on_ready: Callable[[], None] = lambda: None,
        grace_seconds: float = 0.0,
    ) -> None:
        """Become ready and answer until `stop` is set; then drain.

        Calls `on_ready` when the server is first ready. For `grace_seconds` it still answers
        without being ready, so that clients can notice.
        """
        # Loaded objects stay. A garbage collection that visits them would stop every thread for a
        # tenth of a second, and copy their pages after a fork.
        gc.collect()
        gc.freeze()
        self._store.report_loaded()
        self._metrics.serving(True, slots=self._data_plane.dispatcher.slots)
        watch = ProcessSampler(self._store.loaded_versions, self._metrics)
        watch.start()
        self._state.set_serving(self._number, True)
        healthy = False
        faults, freed = _minor_faults(), FreedMemory()
        try:
            while not stop.is_set():
                self._came_round = monotonic()
                before, faults = faults, _minor_faults()
                self._metrics.add(MINOR_FAULTS, faults - before)
                freed.look(monotonic(), process_time())
                # Every worker reports the readiness of the whole server.
                was_healthy, healthy = healthy, self._state.ready
                self._grpc.show_health(healthy, self._models())
                self._state.set_healthy(self._number, healthy)
                if healthy and not was_healthy:
                    on_ready()
                self._reload()
                # Python runs signal handlers on the main thread. If the kernel delivers a signal to
                # another thread, an endless wait here would not notice it until the next signal.
                stop.wait(_POLL_SECONDS)
        finally:
            self._came_round = math.inf
            self._state.set_serving(self._number, False)
            self._grpc.show_health(False, self._models())
            if grace_seconds:
                _log.info("no longer ready; answering for another %g s", grace_seconds)
                sleep(grace_seconds)
            _log.info("draining: up to %g s for requests in flight", self._config.drain_seconds)
            self.close()
            watch.stop()
            self._metrics.serving(False)

    @property
    def runs_still(self) -> bool:
        """True while a batch runs."""
        return self._data_plane.dispatcher.running_since < math.inf

    def goes_on(self) -> bool:
        """True if this process makes progress: its main loop runs, and no batch hangs.

        A batch that waits for the disk, however slow, does not hang. Not thread-safe.
        """
        limit = self._config.heartbeat_seconds
        since = min(self._came_round, self._data_plane.dispatcher.running_since)
        if not limit or monotonic() - since < limit:
            return True
        before, self._disk_reads = self._disk_reads, _disk_reads()
        return self._disk_reads != before

    def close(self) -> None:
        """Accept no calls; return when all are answered or the time is up."""
        end = monotonic() + self._config.drain_seconds
        for listener in self._listeners:
            listener.drain()
        for listener in self._listeners:
            listener.stop(max(0.0, end - monotonic()))
        self._batch_threads.stop()
        if self._data_plane.shadow_thread is not None:
            self._data_plane.shadow_thread.stop()
        if self._recorder is not None:
            self._recorder.stop(_RECORDER_SECONDS)
        if self._tracer is not None:
            self._tracer.stop()

    def _reload(self) -> None:
        asked = self._state.reloads
        if asked != self._reloads:
            self._reloads = asked
            if self.guard is not None:
                self.guard.reload()

    def _models(self) -> dict[str, bool]:
        served = {loaded_version.model.name for loaded_version in self._store.defaults()}
        return {entry.model: entry.model in served for entry in self._store.index()}


def _reports(config: ServerConfig, tracer: "Tracer | None") -> RequestReports | None:
    if tracer is None and config.slow_request_ms == 0:
        return None
    return RequestReports(tracer, config.slow_request_ms)


def _recorder(config: ServerConfig, plane: DataPlane, metrics: ServerMetrics) -> "Recorder | None":
    if config.record is None:
        return None
    # Imported here: it takes pyarrow.
    from serving.recording.recorder import Recorder

    return Recorder(config, plane.compiled, lambda why, by: metrics.add(RECORDED, by, why))


def _shadows(config: ServerConfig) -> Shadows | None:
    if config.shadow is None:
        return None
    return Shadows(config.shadow, config.shadow_share, Random().random)  # noqa: S311


def _minor_faults() -> int:
    """Page faults without a disk read, of all threads of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _disk_reads() -> int:
    """Page faults that waited for a disk read, of all threads of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
