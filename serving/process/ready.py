"""A server's report when it is ready."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model; `products` is the precision of its tower on a host, None on devices."""

    name: str
    version: int
    topology: str
    table_bytes: int
    memory: str
    kernels: dict[str, str]
    products: str | None
    executor: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The server's addresses and models.

    Attributes:
        unix_url: second address of gRPC, in the form of gRPC's clients.
        http_unix_socket: path of the second address of HTTP.
        missing: the reasons why configured models are not served, by name.
    """

    grpc_url: str
    metrics_url: str
    admin_url: str | None
    unix_url: str | None
    http_unix_socket: str | None
    workers: int
    models: tuple[ServedModel, ...]
    missing: dict[str, str]

    def fields(self) -> dict[str, object]:
        """The report as plain values."""
        return asdict(self)
