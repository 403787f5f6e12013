"""What a shard host reports when it is ready."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """A version that the host holds its share of, as it reports it.

    Attributes:
        table_bytes: bytes of the share's rows.
    """

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
