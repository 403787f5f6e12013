"""The target of a load."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Target:
    """A server's method over gRPC, or its predict calls over HTTP, without TLS.

    Attributes:
        host: name or address.
        path: of the gRPC method; not used over HTTP, where each message names its model.
        token: sent as `authorization: Bearer …`; None: none is.
    """

    host: str
    port: int
    path: str = "/inference.GRPCInferenceService/ModelInfer"
    is_http: bool = False
    token: str | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """`host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
