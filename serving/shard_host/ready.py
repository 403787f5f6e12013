"""A shard host's report when it is ready."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """A version whose share the host holds, with the bytes of its rows."""

    model: str
    version: int
    topology: str
    table_bytes: int


@dataclass(frozen=True, slots=True)
class ShardHostReady:
    """A shard host's addresses and versions."""

    grpc_url: str
    metrics_url: str
    host_number: int
    versions: tuple[HeldVersion, ...]

    def fields(self) -> dict[str, object]:
        """The report as plain values."""
        return asdict(self)
