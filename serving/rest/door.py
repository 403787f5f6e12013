"""Lets HTTP requests in, by the same tokens, scopes and rates as RPCs."""

from collections.abc import Mapping

from serving.access import Access
from serving.guard import Guard
from serving.refusals import PermissionDeniedError
from serving.rest.routes import find_route
from serving.rpc_access import access_of
from serving.status import status_of
from sharded_infer.errors import ShardedInferError

# Probes have no tokens, and the description is the same for everybody.
_OPEN = {"/ready", "/live", "/openapi.json"}


class HttpDoor:
    """Decides before a request's body is read."""

    def __init__(self, guard: Guard | None, *, admin_elsewhere: bool = False) -> None:
        """Keeps who is let in.

        Args:
            guard: decides; None: all are let in.
            admin_elsewhere: what changes the server is answered on the admin address alone.
        """
        self._guard = guard
        self._admin_elsewhere = admin_elsewhere

    def admit(self, method: str, path: str, headers: Mapping[str, str], peer: str) -> None:
        """Lets a request in.

        Args:
            method: its method.
            path: as it came.
            headers: by lower-case name.
            peer: the client's address, as `address:port`.

        Raises:
            HttpError, RequestError: there is no such path of the protocol.
            UnauthenticatedError, PermissionDeniedError, RateLimitError: it may not come.
        """
        if self._guard is None and not self._admin_elsewhere:
            return
        access = access_of_path(method, path)
        if access is Access.ADMIN and self._admin_elsewhere:
            raise PermissionDeniedError(
                "this server answers what changes it on its admin address alone"
            )
        if self._guard is None:
            return
        try:
            self._guard.admit(access, headers.get("authorization"), peer)
        except ShardedInferError as error:
            if access is Access.PREDICT:
                code, _ = status_of(error)
                self._guard.count_refused(code.name)
            raise


def access_of_path(method: str, path: str) -> Access:
    """What an HTTP request needs: as its RPC, and for pages the scope metrics.

    Args:
        method: its method.
        path: as it came.

    Raises:
        HttpError, RequestError: there is no such path of the protocol.
    """
    if path in _OPEN:
        return Access.OPEN
    if path != "/v2" and not path.startswith("/v2/"):
        return Access.METRICS
    operation = find_route(method, path)[0].operation.removesuffix("Version")
    if operation == "AllStatistics":
        operation = "ModelStatistics"
    return access_of(f"/inference.GRPCInferenceService/{operation}")
