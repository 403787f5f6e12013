"""What the protocol's RPCs are called with where no gRPC call stands behind them."""

from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from serving.rest.exchange import RpcStatusError


class RpcContext:
    """The part of a gRPC call's context that the RPCs use."""

    def __init__(self, is_active: Callable[[], bool]) -> None:
        """Keeps how to ask for the client.

        Args:
            is_active: whether the client still waits.
        """
        self.is_active = is_active

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Ends the call with an error.

        Raises:
            RpcStatusError: always.
        """
        raise RpcStatusError(code, details)


class Rpcs:
    """Calls the protocol's RPCs by their names."""

    def __init__(self, service: object) -> None:
        """Keeps what answers.

        Args:
            service: a servicer of generated code.
        """
        self._service = service

    def call(self, name: str, request: Any, is_active: Callable[[], bool] = lambda: True) -> Any:
        """Calls an RPC.

        Args:
            name: such as ModelMetadata.
            request: its message.
            is_active: whether the client still waits.

        Returns:
            The response's message.

        Raises:
            RpcStatusError: the RPC ended with an error.
        """
        return getattr(self._service, name)(request, RpcContext(is_active))
