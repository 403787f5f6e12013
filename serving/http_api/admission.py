"""Admission of HTTP requests, by the same tokens, scopes and rates as RPCs."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from serving.errors import PermissionDeniedError
from serving.host.addresses import is_loopback
from serving.http_api.routes import find_route
from serving.security.access import Access, access_of
from serving.security.guard import Guard
from serving.status import status_of
from sharded_infer.errors import ShardedInferError

# Values of Sec-Fetch-Site: a page of this server, and its reader.
_OWN_SITES = {"same-origin", "none"}
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
        if self._guard is None and not self._admin_elsewhere and method != "POST":
            return
        access = access_of_path(method, path)
        if access is Access.ADMIN and self._admin_elsewhere:
            raise PermissionDeniedError(
                "this server answers what changes it on its admin address alone"
            )
        if self._guard is not None:
            self._check_guard(self._guard, access, headers.get("authorization"), peer)
        if access is Access.ADMIN and method == "POST" and "authorization" not in headers:
            _refuse_other_sites(headers, peer)

    def _check_guard(
        self, guard: Guard, access: Access, authorization: str | None, peer: str
    ) -> None:
        try:
            guard.admit(access, authorization, peer)
        except ShardedInferError as error:
            if access is Access.PREDICT:
                guard.count_refused(status_of(error).code.name)
            raise


def _refuse_other_sites(headers: Mapping[str, str], peer: str) -> None:
    """Refuses changes that a web page of another site asks for through its reader's browser.

    A page's name may be made to mean this machine, so clients on it must call it by its own names.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    site = headers.get("sec-fetch-site", "none")
    if site not in _OWN_SITES or (origin is not None and origin.partition("://")[2] != host):
        raise PermissionDeniedError(
            f"a web page of another site ({(origin or site)[:100]}) may not change this server"
        )
    if is_loopback(peer.rpartition(":")[0]) and not is_loopback(_name_of(host)):
        raise PermissionDeniedError(
            f"Host: expected localhost or a loopback address here, got {host[:100]!r}; "
            "a token allows any"
        )


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


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
