"""Admission of HTTP requests, by the same tokens, scopes and rates as RPCs."""

from collections.abc import Mapping

from serving.errors import PermissionDeniedError
from serving.http_api.routes import find_route
from serving.security.access import Access, access_of
from serving.security.guard import Guard
from serving.status import status_of
from sharded_infer.errors import ShardedInferError

# Probes have no tokens, and the API description is public.
_OPEN = {"/ready", "/live", "/openapi.json"}


class HttpAdmission:
    """Admits or refuses requests before their bodies are read."""

    def __init__(self, guard: Guard | None, *, admin_elsewhere: bool = False) -> None:
        """Stores the rules; without a guard every request is admitted.

        With `admin_elsewhere`, requests that change the server are answered only on the admin
        address.
        """
        self._guard = guard
        self._admin_elsewhere = admin_elsewhere

    def admit(self, method: str, path: str, headers: Mapping[str, str], peer: str) -> None:
        """Admits a request or raises.

        Args:
            path: percent-encoded, as received.
            headers: by lower-case name.
            peer: the client, as `address:port`.

        Raises:
            HttpError, RequestError: the protocol has no such path.
            UnauthenticatedError, PermissionDeniedError, RateLimitError: the request is refused.
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
                self._guard.count_refused(status_of(error).code.name)
            raise


def access_of_path(method: str, path: str) -> Access:
    """Access that a request needs: that of its RPC, or the scope metrics for pages.

    The path is percent-encoded. Raises HttpError or RequestError if the protocol has no such path.
    """
    if path in _OPEN:
        return Access.OPEN
    if path != "/v2" and not path.startswith("/v2/"):
        return Access.METRICS
    operation = find_route(method, path)[0].operation.removesuffix("Version")
    if operation == "AllStatistics":
        operation = "ModelStatistics"
    return access_of(f"/inference.GRPCInferenceService/{operation}")
