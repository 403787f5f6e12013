"""One process that answers requests: transport, executors, health; ready, draining, gone."""

import gc
import logging
import math
import os
import resource
import signal
import threading
from collections.abc import Callable
from time import monotonic, process_time, sleep

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tritonclient.grpc import service_pb2_grpc

from serving.admin_server import AdminServer
from serving.batch_runners import BatchRunners
from serving.batcher import QueueLimits
from serving.board import Board
from serving.config import ServerConfig
from serving.freed_memory import FreedMemory
from serving.guard import make_guard
from serving.inference import Inference
from serving.metrics import Metrics
from serving.model_control import ModelControl
from serving.model_store import ModelStore
from serving.process_watch import ProcessWatch
from serving.repository_rpcs import RepositoryRpcs
from serving.request_reports import RequestReports
from serving.rest.model_api import ModelApi
from serving.rest.predictions import Predictions
from serving.rest.rest_api import RestApi
from serving.rest.rpc_context import Rpcs
from serving.rpc_handlers import (
    INFERENCE_SERVICE,
    PREDICTOR_SERVICE,
    CallCount,
    HandlerTable,
)
from serving.server_state import ServerState
from serving.service import InferenceService
from serving.settings_rpcs import SettingsRpcs
from serving.shared_memory_rpcs import SharedMemoryRpcs
from serving.stream_behaviour import StreamBehaviour
from serving.tracing import Tracing, start_tracing
from serving.transport import make_transport
from serving.usable_cores import usable_cores

_log = logging.getLogger("sharded_infer")
_POLL_SECONDS = 0.1


class Worker:
    """Everything that one process answers with. Made after any fork: gRPC does not survive one."""

    def __init__(
        self,
        config: ServerConfig,
        store: ModelStore,
        metrics: Metrics,
        state: ServerState,
        board: Board,
        number: int = 0,
    ) -> None:
        """Prepares the RPCs; `listen` begins to answer them.

        Args:
            config: the server's settings.
            store: the versions that are loaded, or will be.
            metrics: the server's.
            state: the server's.
            board: the server's.
            number: the worker's, from 0.
        """
        self._config = config
        self._store = store
        self._metrics = metrics
        self._state = state
        self._number = number
        self._tracing: Tracing | None = None
        if config.tracing is not None:
            self._tracing = start_tracing(config.tracing, number, metrics.traces_dropped)
        inference = Inference(
            store,
            metrics,
            slots=config.slots or slots_of(config.workers),
            limits=QueueLimits(
                config.max_queue_requests, config.max_queue_samples, config.max_queue_bytes
            ),
            memory=state.memory,
            reports=_reports(config, self._tracing),
        )
        self._inference = inference
        self._health = health.HealthServicer()
        # When the main thread last came round; infinity: it has other things to do.
        self._came_round = math.inf
        self._disk_reads = 0
        calls = CallCount(metrics.in_flight)
        self.guard = make_guard(config, metrics.unknown_failed)
        self._reloads = state.reloads
        handlers = HandlerTable(
            calls,
            inference.dispatcher.arrivals,
            guard=self.guard,
            admin_elsewhere=config.admin_address is not None,
        )
        control = ModelControl(board, config.follow) if config.explicit else None
        # Whoever follows the repository is told by the server's first process.
        first = os.getpid() if config.workers == 1 else os.getppid()
        service = InferenceService(
            store,
            lambda: state.ready,
            (
                RepositoryRpcs(store, lambda: os.kill(first, signal.SIGHUP), control),
                SharedMemoryRpcs(state.memory),
                SettingsRpcs(store, state.logs),
            ),
            extensions=("system_shared_memory",) if state.memory else (),
            max_batch=config.max_batch,
        )
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, handlers)
        names = (
            INFERENCE_SERVICE,
            PREDICTOR_SERVICE,
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        )
        reflection.enable_server_reflection(names, handlers)
        handlers.set_infer(inference)
        self._streams = StreamBehaviour(config, inference, calls, lambda: self._runners.wake())
        handlers.set_stream(self._streams)
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._transport = make_transport(
            config, inference=inference, handlers=handlers, calls=calls
        )
        predictions = Predictions(config, inference, calls, lambda: self._runners.wake())
        # The protocol over HTTP.
        self.rest = RestApi(
            ModelApi(Rpcs(service)), predictions, max_body_bytes=config.max_message_bytes
        )
        self._admin = None
        if config.admin_address is not None:
            self._admin = AdminServer(config, config.admin_address, handlers)
        # After the transport, which may have threads of its own for the same.
        self._runners = BatchRunners(inference.dispatcher)

    def listen(self, port: int) -> int:
        """Begins to answer.

        Args:
            port: 0 picks a free one.

        Returns:
            The port.

        Raises:
            InputError: the port cannot be had.
        """
        if self._admin is not None:
            self._admin.listen()
        return self._transport.listen(port)

    def warm_up(self) -> None:
        """Runs every version at several batch sizes on each thread that will."""
        self._transport.warm(self._store.warm_up)
        self._runners.start(self._store.warm_up)

    def serve(
        self,
        stop: threading.Event,
        *,
        on_ready: Callable[[], None] = lambda: None,
        grace_seconds: float = 0.0,
    ) -> None:
        """Says that it is ready, and answers until it is told to stop; then drains.

        Args:
            stop: set to end it.
            on_ready: called when it says so for the first time.
            grace_seconds: how long it answers on, not ready, for clients that look at readiness.
        """
        # What is loaded stays: a collection that looked at all of it would stop every thread for a
        # tenth of a second, and, in a fork, copy its pages.
        gc.collect()
        gc.freeze()
        self._store.report_loaded()
        self._metrics.serving(True, slots=self._inference.dispatcher.slots)
        watch = ProcessWatch(self._store, self._metrics)
        watch.start()
        self._state.set_serving(self._number, True)
        healthy = False
        models: dict[str, bool] = {}
        faults, freed = _minor_faults(), FreedMemory()
        try:
            while not stop.is_set():
                self._came_round = monotonic()
                before, faults = faults, _minor_faults()
                self._metrics.minor_faults(faults - before)
                freed.look(monotonic(), process_time())
                # All workers, asked or watched, say the same.
                if self._state.ready != healthy:
                    healthy = not healthy
                    serving = health_pb2.HealthCheckResponse
                    self._set_health(serving.SERVING if healthy else serving.NOT_SERVING)
                    if healthy:
                        on_ready()
                models = self._tell_models(models, healthy=healthy)
                self._reload()
                # A signal that the kernel hands to another thread does not end an endless wait of
                # the main one, where Python runs its handler: it would be noticed at the next.
                stop.wait(_POLL_SECONDS)
        finally:
            self._came_round = math.inf
            self._state.set_serving(self._number, False)
            self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
            self._tell_models(models, healthy=False)
            if grace_seconds:
                _log.info("not ready any more; answering for another %g s", grace_seconds)
                sleep(grace_seconds)
            _log.info("draining: up to %g s for requests in flight", self._config.drain_seconds)
            self.close()
            watch.stop()
            self._metrics.serving(False)

    @property
    def runs_still(self) -> bool:
        """Whether a batch is being run."""
        return self._inference.dispatcher.running_since < math.inf

    def goes_on(self) -> bool:
        """Whether this process gets on: its main thread comes round, and no batch hangs.

        A batch that waits for the disk, however slow, does not hang. One thread at a time calls.
        """
        limit = self._config.heartbeat_seconds
        since = min(self._came_round, self._inference.dispatcher.running_since)
        if not limit or monotonic() - since < limit:
            return True
        before, self._disk_reads = self._disk_reads, _disk_reads()
        return self._disk_reads != before

    def close(self) -> None:
        """Accepts no more, and returns when all calls are answered, or time is up."""
        end = monotonic() + self._config.drain_seconds
        self._streams.drain()
        self.rest.drain()
        if self._admin is not None:
            self._admin.stop()
        self._transport.stop(self._config.drain_seconds)
        self.rest.wait(end - monotonic())
        self._runners.stop()
        if self._tracing is not None:
            self._tracing.stop()

    def _reload(self) -> None:
        asked = self._state.reloads
        if asked != self._reloads:
            self._reloads = asked
            if self.guard is not None:
                self.guard.reload()

    def _tell_models(self, told: dict[str, bool], *, healthy: bool) -> dict[str, bool]:
        """Has the health service say of each model, by its name, whether it is served.

        Args:
            told: what it says now.
            healthy: whether the server wants requests.

        Returns:
            What it says from now on.
        """
        served = {snapshot.model.name for snapshot in self._store.defaults()}
        says = {entry.model: healthy and entry.model in served for entry in self._store.index()}
        status = health_pb2.HealthCheckResponse
        for name, is_served in says.items():
            if told.get(name) != is_served:
                self._health.set(name, status.SERVING if is_served else status.NOT_SERVING)
        return says

    def _set_health(self, status: int) -> None:
        for name in ("", INFERENCE_SERVICE, PREDICTOR_SERVICE):
            self._health.set(name, status)


def _reports(config: ServerConfig, tracing: Tracing | None) -> RequestReports | None:
    if tracing is None and config.slow_request_ms == 0:
        return None
    return RequestReports(None if tracing is None else tracing.tracer, config.slow_request_ms)


def _minor_faults() -> int:
    """Pages that this process has had mapped, by all of its threads."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _disk_reads() -> int:
    """Pages that this process has waited for, by all of its threads."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def slots_of(workers: int) -> int:
    """A worker's share of the cores that this process may use, at least one."""
    return max(1, usable_cores() // workers)
