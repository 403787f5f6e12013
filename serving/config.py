"""How a server is set up."""

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from serving.trace_settings import TraceSettings
from serving.version_policy import LATEST, VersionPolicy

MIB = 2**20
# In `load_models`.
ALL_MODELS = "*"


def is_loopback(host: str) -> bool:
    """Whether an address that is listened on can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server's settings.

    Attributes:
        repository: where versions are published: a folder or a URL.
        models: the models to serve; empty serves all of the repository.
        explicit: clients load and unload models; otherwise all are served.
        load_models: with `explicit`, the models to begin with; "*": all.
        follow: which versions of each model.
        poll_seconds: between looks for new versions and labels; 0: only at SIGHUP.
        spare_bytes: memory that must stay free beside a version that comes later.
        topology: which published plan to use; None takes each version's first.
        host: address to listen on.
        port: gRPC port; 0 picks a free one.
        metrics_port: HTTP port: metrics, the live page, and the protocol; 0 picks a free one.
        transport: what carries the RPCs: "grpcio" or "native".
        workers: processes that share the port.
        max_connection_age_seconds: clients are asked to connect anew after so long, so that few
            connections spread over the workers; None: never.
        executor: "inline", "batched" or "auto" for all models; None: as each one's spec says.
        max_delay_us: microseconds that batched models wait for more requests; None: as each one's
            spec says.
        memory: "map" or "huge": where all models' tables lie; None: as each one's spec says.
        slots: batches run side by side in a worker, each on one core; 0: its share of the cores.
        threads: RPCs of a worker that have a thread; grpcio only.
        max_concurrent_requests: RPCs of a worker in progress or waiting for a thread; one more is
            refused unread.
        max_streams: ModelStreamInfer calls of a worker; one more is refused.
        max_stream_requests: requests of a stream that are read and not answered yet; more are left
            unread.
        max_queue_requests: requests of a worker that wait for a slot; one more is refused.
        max_queue_samples: their samples.
        max_queue_bytes: their messages' bytes.
        shared_memory: clients may send inputs and take outputs in shared memory of this machine:
            whatever this process's user may open under /dev/shm.
        max_batch: samples of a request.
        max_message_bytes: size of a request or response message.
        http_max_connections: HTTP connections of a worker; one more is closed at once.
        http_header_bytes: of an HTTP request's first line and headers.
        http_header_seconds: how long they may take to come.
        http_body_seconds: how long an HTTP request's body may take to come.
        http_idle_seconds: how long an HTTP connection may wait for its next request.
        metrics: how much is counted: "full", "basic" or "off".
        grace_seconds: after SIGTERM, how long the server says that it is not ready, and goes on
            answering, before it accepts no more.
        drain_seconds: how long requests in flight may take to finish after that.
        tracing: how requests are traced; None: not at all.
        slow_request_ms: from which time on a request is logged as slow; 0: none is; None: twice its
            model's latency objective.
    """

    repository: Path | str
    models: tuple[str, ...] = ()
    explicit: bool = False
    load_models: tuple[str, ...] = ()
    follow: VersionPolicy = LATEST
    poll_seconds: float = 5.0
    spare_bytes: int = 256 * MIB
    topology: str | None = None
    host: str = "127.0.0.1"
    port: int = 8001
    metrics_port: int = 8002
    transport: str = "grpcio"
    workers: int = 1
    max_connection_age_seconds: float | None = None
    executor: str | None = None
    max_delay_us: int | None = None
    memory: str | None = None
    slots: int = 0
    threads: int = 32
    max_concurrent_requests: int = 128
    max_streams: int = 32
    max_stream_requests: int = 64
    max_queue_requests: int = 1024
    max_queue_samples: int = 2**20
    max_queue_bytes: int = 256 * MIB
    shared_memory: bool = False
    max_batch: int = 65536
    max_message_bytes: int = 64 * MIB
    http_max_connections: int = 1024
    http_header_bytes: int = 16 * 1024
    http_header_seconds: float = 10.0
    http_body_seconds: float = 60.0
    http_idle_seconds: float = 75.0
    metrics: str = "full"
    grace_seconds: float = 2.0
    drain_seconds: float = 30.0
    tracing: TraceSettings | None = None
    slow_request_ms: float | None = None
