"""Where a load goes."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Target:
    """A server's method over gRPC, or its predict calls over HTTP, without TLS.

    Attributes:
        host: name or address.
        port: TCP port.
        path: of the method; over HTTP each message says its model.
        is_http: over HTTP/1.1.
        token: sent as `authorization: Bearer …`; None: none is.
    """

    host: str
    port: int
    path: str = "/inference.GRPCInferenceService/ModelInfer"
    is_http: bool = False
    token: str | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """Host and port as one word."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
