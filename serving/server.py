"""The server: wires the parts together, says when it is ready, and drains before it ends."""

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from wsgiref.simple_server import WSGIServer

import grpc
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server
from tritonclient.grpc import service_pb2_grpc

from serving.config import ServerConfig
from serving.metrics import Metrics
from serving.model_store import ModelStore
from serving.service import InferenceService
from serving.unary_calls import UnaryCalls
from sharded_infer.errors import InputError, NotFoundError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repository import Repository

_log = logging.getLogger("sharded_infer")
_DRAIN_POLL_SECONDS = 0.02
_SIGNAL_POLL_SECONDS = 0.1
_QUIET_POLLS = 25
SERVICE_NAME = "inference.GRPCInferenceService"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One line of what a server says when it is ready."""

    name: str
    version: int
    topology: str
    table_bytes: int
    kernels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Ready:
    """What a server says when it is ready."""

    grpc_url: str
    metrics_url: str
    models: tuple[ServedModel, ...]

    def fields(self) -> dict[str, object]:
        """As plain values."""
        return asdict(self)


def serve(
    config: ServerConfig,
    *,
    on_ready: Callable[[Ready], None],
    progress: Progress = no_progress,
) -> None:
    """Loads the models and serves them until SIGTERM or SIGINT; then drains and returns.

    Args:
        config: the server's settings.
        on_ready: called once, when every model is loaded.
        progress: told how far loading is.

    Raises:
        InputError: a port cannot be had.
        NotFoundError: the repository holds none of the models.
        ArtifactError, GateError: a version is damaged or does not score as it should.
    """
    # On this kind of work OpenMP's barriers cost more than they give; requests run side by side.
    torch.set_num_threads(1)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    repository = Repository(config.repository)
    models = list(config.models) or repository.models()
    if not models:
        raise NotFoundError(f"{config.repository}: holds no published model")
    metrics = Metrics()
    pool = ThreadPoolExecutor(config.threads, thread_name_prefix="rpc")
    store = ModelStore(
        repository,
        metrics,
        pool,
        threads=config.threads,
        topology=config.topology,
        max_batch=config.max_batch,
    )
    store.announce(models)
    service = InferenceService(store, metrics, max_batch=config.max_batch)
    health_service = health.HealthServicer()
    calls = UnaryCalls()
    server, port = _start_grpc(config, pool, service, health_service, calls)
    pages, metrics_port = _start_metrics(config, metrics)
    try:
        for name in models:
            store.load(name, progress)
        service.ready.set()
        _set_health(health_service, health_pb2.HealthCheckResponse.SERVING)
        on_ready(_ready(config, port, metrics_port, store))
        # A signal that the kernel hands to another thread does not end an endless wait of the main
        # one, where Python runs its handler: it would be noticed at the next signal, or never.
        while not stop.wait(_SIGNAL_POLL_SECONDS):
            pass
        _log.info("draining: up to %g s for requests in flight", config.drain_seconds)
    finally:
        service.ready.clear()
        _set_health(health_service, health_pb2.HealthCheckResponse.NOT_SERVING)
        _drain(server, calls, config.drain_seconds)
        pool.shutdown()
        pages.shutdown()
        pages.server_close()


def _start_metrics(config: ServerConfig, metrics: Metrics) -> tuple[WSGIServer, int]:
    try:
        pages, _ = start_http_server(
            config.metrics_port, addr=config.host, registry=metrics.registry
        )
    except OSError as error:
        raise InputError(
            f"metrics port {config.host}:{config.metrics_port} cannot be had: {error.strerror}"
        ) from error
    return pages, pages.server_port


def _start_grpc(
    config: ServerConfig,
    pool: ThreadPoolExecutor,
    service: InferenceService,
    health_service: health.HealthServicer,
    calls: UnaryCalls,
) -> tuple[grpc.Server, int]:
    server = grpc.server(
        pool,
        interceptors=[calls],
        options=[
            ("grpc.max_receive_message_length", config.max_message_bytes),
            ("grpc.max_send_message_length", config.max_message_bytes),
            # Two servers on one port would split the clients between them unseen.
            ("grpc.so_reuseport", 0),
        ],
        maximum_concurrent_rpcs=config.max_concurrent_requests,
    )
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    _set_health(health_service, health_pb2.HealthCheckResponse.NOT_SERVING)
    try:
        port = server.add_insecure_port(f"{config.host}:{config.port}")
    except RuntimeError as error:
        raise InputError(f"port {config.host}:{config.port} cannot be had: {error}") from error
    server.start()
    return server, port


def _drain(server: grpc.Server, calls: UnaryCalls, seconds: float) -> None:
    """Accepts no more, and ends when the calls in progress are answered, or time is up."""
    stopped = server.stop(seconds)
    # Streams, such as a health watch, would last the whole time: they are cut off.
    # A call that waits for a thread gets one as soon as another ends, well within the quiet polls.
    quiet = 0
    while not stopped.wait(_DRAIN_POLL_SECONDS):
        quiet = quiet + 1 if calls.in_progress == 0 else 0
        if quiet == _QUIET_POLLS:
            server.stop(None)


def _set_health(service: health.HealthServicer, status: int) -> None:
    for name in ("", SERVICE_NAME):
        service.set(name, status)


def _ready(config: ServerConfig, port: int, metrics_port: int, store: ModelStore) -> Ready:
    return Ready(
        grpc_url=f"{config.host}:{port}",
        metrics_url=f"http://{config.host}:{metrics_port}/metrics",
        models=tuple(
            ServedModel(
                name=snapshot.model.name,
                version=snapshot.model.version,
                topology=snapshot.model.plan.topology.name,
                table_bytes=snapshot.model.artifact.manifest.table_bytes,
                kernels=snapshot.model.lookup.backends,
            )
            for snapshot in store.snapshots()
        ),
    )
