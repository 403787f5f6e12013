"""Reader of a running server's metrics page."""

from collections.abc import Iterator
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from serving.remote.caller import ANONYMOUS, TOKEN_VARIABLE, Caller
from sharded_infer.errors import InputError

_TIMEOUT_SECONDS = 5.0
_USER_STATES = "sharded_infer_user_states_total"
_REFUSED = {401: "refuses the token", 403: "refuses the token, which needs the scope metrics"}


def scraped_samples(url: str, caller: Caller = ANONYMOUS) -> Iterator[Sample]:
    """Samples of the page, with names, labels and values; InputError if it cannot be read."""
    try:
        request = Request(url)  # noqa: S310 - the user's own URL
        for name, value in caller.headers.items():
            # A redirection must not take a token to another server.
            request.add_unredirected_header(name, value)
        context = caller.tls_context()
        with urlopen(request, timeout=_TIMEOUT_SECONDS, context=context) as response:  # noqa: S310
            text = response.read().decode()
    except HTTPError as error:
        with error:
            raise InputError(f"metrics page {url}: {_refusal(error, caller)}") from error
    except (OSError, URLError, ValueError) as error:
        raise InputError(f"metrics page {url}: cannot be had: {error}") from error
    for family in text_string_to_metric_families(text):
        yield from family.samples


def user_states(url: str, model: str, caller: Caller = ANONYMOUS) -> tuple[int, int]:
    """Hits and misses of a model's user cache since the server's start."""
    counts = {"hit": 0, "miss": 0}
    for sample in scraped_samples(url, caller):
        if sample.name == _USER_STATES and sample.labels["model"] == model:
            counts[sample.labels["result"]] += int(sample.value)
    return counts["hit"], counts["miss"]


def _refusal(error: HTTPError, caller: Caller) -> str:
    if error.code == 401 and not caller.has_token:
        return f"asks for a token: --token-file, or the variable {TOKEN_VARIABLE}"
    return f"{_REFUSED.get(error.code, 'cannot be had')}: {error}"
