"""The target of a load."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Target:
    """A server's gRPC method, or its predict calls over HTTP, without TLS, with a bearer token."""

    host: str
    port: int
    path: str = "/inference.GRPCInferenceService/ModelInfer"
    is_http: bool = False
    token: str | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """`host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
