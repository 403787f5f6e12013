"""Requests that web pages of other sites make through their readers' browsers."""

from urllib.parse import urlsplit

from serving.errors import PermissionDeniedError
from serving.host.addresses import is_loopback
from serving.http_api.exchange import HttpRequest

# Values of Sec-Fetch-Site: a page of this server, and its reader.
_OWN_SITES = {"same-origin", "none"}


def refuse_other_sites(request: HttpRequest) -> None:
    """Refuses a change of the server that a web page of another site asks for.

    A page's name may be made to mean this machine, so clients on it must call it by its own names.
    A token admits any. Raises PermissionDeniedError.
    """
    headers = request.headers
    if "authorization" in headers:
        return
    host, origin = headers.get("host", ""), headers.get("origin")
    site = headers.get("sec-fetch-site", "none")
    if site not in _OWN_SITES or (origin is not None and origin.partition("://")[2] != host):
        raise PermissionDeniedError(
            f"a web page of another site ({(origin or site)[:100]}) may not change this server"
        )
    if is_loopback(_host_of(request.peer)) and not is_loopback(_name_of(host)):
        raise PermissionDeniedError(
            f"Host: expected localhost or a loopback address here, got {host[:100]!r}; "
            "a token allows any"
        )


def _host_of(peer: str) -> str:
    """Address of a client as the transport names it, such as ipv4:127.0.0.1:50000."""
    return peer.partition(":")[2].rpartition(":")[0]


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
