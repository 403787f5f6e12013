"""How a server is set up."""

from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server's settings.

    Attributes:
        repository: where versions are published.
        models: the models to serve; empty serves all of the repository.
        topology: which published plan to use; None takes each version's first.
        host: address to listen on.
        port: gRPC port; 0 picks a free one.
        metrics_port: HTTP port of the metrics page; 0 picks a free one.
        threads: RPCs answered side by side; each runs on one core.
        max_concurrent_requests: RPCs in progress or waiting for a thread; one more is refused.
        max_batch: samples of a request.
        max_message_bytes: size of a request or response message.
        drain_seconds: how long requests in flight may take to finish after SIGTERM.
    """

    repository: Path
    models: tuple[str, ...] = ()
    topology: str | None = None
    host: str = "127.0.0.1"
    port: int = 8001
    metrics_port: int = 8002
    threads: int = 8
    max_concurrent_requests: int = 1024
    max_batch: int = 65536
    max_message_bytes: int = 64 * MIB
    drain_seconds: float = 30.0
