"""What a server reports when it is ready."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that the server serves, as it reports it.

    Attributes:
        products: the precision of its tower's products; None: it is on devices.
    """

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
        unix_url: where gRPC is answered too, as gRPC's clients write it.
        http_unix_socket: the path where HTTP is answered too.
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
