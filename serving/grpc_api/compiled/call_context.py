"""Context of a call for handlers of gRPC for Python, over the native transport."""

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, NoReturn

import grpc

from serving.status import Status, StatusCode
from serving.transport.events import Event, Metadata

_BY_CODE = {code: StatusCode[code.name] for code in grpc.StatusCode}


class AbortedError(Exception):
    """Ends a handler that has aborted its call."""


class CallContext(grpc.ServicerContext):
    """One call's context. The transport's threads end it; a handler's thread uses it.

    Attributes:
        trailers: trailing metadata set by the handler.
    """

    def __init__(self, event: Event, finish: Callable[[Status], None]) -> None:
        self._metadata = event.metadata
        self._peer = event.peer
        left = event.seconds_left
        self._deadline = None if left is None else monotonic() + left
        self._finish = finish
        self._callbacks: list[Callable[[], None]] = []
        self._ended = False
        self._code = StatusCode.OK
        self._details = ""
        self.trailers: tuple[tuple[str, str | bytes], ...] = ()

    def status(self) -> Status | None:
        """The handler's status, if it is not OK."""
        return None if self._code is StatusCode.OK else Status(self._code, self._details)

    def end(self) -> None:
        """Calls the callbacks for the end of the call. Idempotent."""
        self._ended = True
        while self._callbacks:
            self._callbacks.pop()()

    def is_active(self) -> bool:
        """True if the client still waits."""
        return not self._ended

    def time_remaining(self) -> float | None:  # type: ignore[override]  # as gRPC's own
        """Seconds to the client's deadline; None if it has none."""
        return None if self._deadline is None else max(0.0, self._deadline - monotonic())

    def cancel(self) -> bool:
        """Ends the call as cancelled."""
        self._finish(Status(StatusCode.CANCELLED, "the server cancelled the call"))
        return True

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Registers a callback for the call's end; False if it has ended."""
        if self._ended:
            return False
        self._callbacks.append(callback)
        if self._ended:
            self.end()
        return True

    def invocation_metadata(self) -> Metadata:
        """The client's metadata."""
        return self._metadata

    def peer(self) -> str:
        """The client's address, as gRPC writes it."""
        return self._peer

    def peer_identities(self) -> None:
        """Names in the client's certificate: not offered."""

    def peer_identity_key(self) -> None:
        """Property of those names: not offered."""

    def auth_context(self) -> dict[str, Any]:
        """TLS properties of the client: not offered."""
        return {}

    def send_initial_metadata(self, initial_metadata: Iterable[Any]) -> None:
        """Does nothing: no handler here has any."""

    def set_trailing_metadata(self, trailing_metadata: Iterable[Any]) -> None:
        """Replaces the trailing metadata."""
        self.trailers = tuple((pair[0], pair[1]) for pair in trailing_metadata)

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Ends the call with a status."""
        self.set_code(code)
        self.set_details(details)
        raise AbortedError

    def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """Ends the call with a status and its trailing metadata."""
        self.set_trailing_metadata(status.trailing_metadata or ())
        self.abort(status.code, status.details)

    def set_code(self, code: grpc.StatusCode) -> None:
        """Sets the final status code."""
        self._code = _BY_CODE[code]

    def set_details(self, details: str) -> None:
        """Sets the status's message."""
        self._details = details
