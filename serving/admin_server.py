"""The port for RPCs that change the server, apart from the one for everybody."""

from concurrent.futures import ThreadPoolExecutor

import grpc

from serving.config import ServerConfig
from serving.grpcio_transport import add_port, grpcio_options
from serving.rpc_handlers import HandlerTable
from serving.tls import tls_files
from sharded_infer.errors import InputError

_THREADS = 4
_STOP_SECONDS = 1.0


class AdminServer:
    """A gRPC server of every RPC but predict calls."""

    def __init__(self, config: ServerConfig, address: str, handlers: HandlerTable) -> None:
        """Prepares the server.

        Args:
            config: the server's settings.
            address: HOST:PORT.
            handlers: all RPCs.
        """
        self._address = address
        self._tls = tls_files(config)
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="admin"),
            options=grpcio_options(config),
        )
        handlers.register_on(self._server, admin=True)

    def listen(self) -> None:
        """Begins to answer.

        Raises:
            InputError: the port cannot be had, or the certificates cannot be used.
        """
        try:
            add_port(self._server, self._address, self._tls)
        except RuntimeError as error:
            raise InputError(f"admin address {self._address} cannot be had: {error}") from error
        self._server.start()

    def stop(self) -> None:
        """Accepts no more; what is being answered has a second."""
        self._server.stop(_STOP_SECONDS).wait()
