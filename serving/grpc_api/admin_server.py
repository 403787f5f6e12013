"""The admin address: a separate port for RPCs that change the server."""

from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.native_transport import NativeTransport
from serving.grpc_api.handlers import HandlerTable
from serving.host.addresses import split_address
from serving.host.unix_socket import UnixSocket
from serving.inference.data_plane import DataPlane
from sharded_infer.errors import InputError

_STOP_SECONDS = 1.0


class AdminServer:
    """A gRPC server that answers every RPC except predict calls."""

    def __init__(
        self,
        config: ServerConfig,
        address: str,
        data_plane: DataPlane,
        handlers: HandlerTable,
        unix_socket: UnixSocket | None,
    ) -> None:
        """Prepares the server; `address` is HOST:PORT, or that of `unix_socket`."""
        self._address = address
        host, self._port = ("", 0) if unix_socket is not None else split_address(address)
        self._transport = NativeTransport(
            config, data_plane, handlers, admin_host=host, unix_socket=unix_socket
        )

    def listen(self) -> None:
        """Starts answering.

        Raises:
            InputError: the port is not available, or the certificates cannot be used.
        """
        try:
            self._transport.listen(self._port)
        except InputError as error:
            raise InputError(f"admin address {self._address} cannot be had: {error}") from error

    def stop(self) -> None:
        """Stops accepting calls; those in progress have one second to finish."""
        self._transport.stop(_STOP_SECONDS)
