"""What a server says when it is ready."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One line of it."""

    name: str
    version: int
    topology: str
    table_bytes: int
    memory: str
    kernels: dict[str, str]
    executor: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Where it listens and what it serves.

    Attributes:
        missing: why each model that is to be served is not, by name.
    """

    grpc_url: str
    metrics_url: str
    admin_url: str | None
    workers: int
    transport: str
    models: tuple[ServedModel, ...]
    missing: dict[str, str]

    def fields(self) -> dict[str, object]:
        """As plain values."""
        return asdict(self)
