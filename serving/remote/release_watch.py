"""Versions of a running server, from its index and its metrics page."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from prometheus_client.samples import Sample
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from serving.config.version_policy import NAME_PARAMETER
from serving.remote.caller import ANONYMOUS, Caller
from serving.remote.failed_call import failed_call
from serving.remote.scraped_metrics import scraped_samples
from serving.remote.shadow_figures import ShadowFigures, shadow_figures
from sharded_infer.errors import InputError

_TIMEOUT_SECONDS = 5.0
# While no version of a model is served.
_NOT_SERVED = ("StatusCode.NOT_FOUND", "StatusCode.UNAVAILABLE")
_AGE = "sharded_infer_served_age_seconds"
_REQUESTS = "sharded_infer_requests_total"
_SHARE = "sharded_infer_version_share"


@dataclass(frozen=True, slots=True)
class WatchedVersion:
    """A version in a server; figures are None without a metrics page.

    States are READY, LOADING or UNAVAILABLE; names are labels and `default`. The share, 0 to 1, is
    intended of requests that name no version.
    """

    model: str
    version: int
    state: str
    reason: str
    names: tuple[str, ...] = ()
    requests: int | None = None
    share: float | None = None
    shadow: ShadowFigures | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """Versions in order, and ages of default versions by model, if there is a metrics page."""

    versions: tuple[WatchedVersion, ...]
    age_seconds: MappingProxyType[str, float]


class ReleaseWatch:
    """Polls a server."""

    def __init__(
        self, client: InferenceServerClient, address: str, page: str | None, caller: Caller
    ) -> None:
        self._client = client
        self._address = address
        self._caller = caller
        self._page = page

    def look(self) -> Watched:
        """Poll once; InputError if server or page do not answer, or refuse the caller."""
        try:
            index = self._client.get_model_repository_index(
                headers=self._caller.headers, client_timeout=_TIMEOUT_SECONDS
            )
        except InferenceServerException as error:
            raise InputError(failed_call(self._address, self._caller, error)) from error
        requests, shares, ages, shadows = self._read_page()
        ready = dict.fromkeys(entry.name for entry in index.models if entry.state == "READY")
        names = {model: self._names(model) for model in ready}
        versions = []
        for entry in index.models:
            key = (entry.name, int(entry.version or 0))
            answered = None if self._page is None else requests.get(key, 0)
            share = None if self._page is None else shares.get(key, 0.0)
            meant = names.get(entry.name, {})
            named = tuple(sorted(name for name, version in meant.items() if version == key[1]))
            shadow = shadows.get(key)
            versions.append(
                WatchedVersion(*key, entry.state, entry.reason, named, answered, share, shadow)
            )
        return Watched(
            tuple(sorted(versions, key=lambda one: (one.model, one.version))),
            MappingProxyType(ages),
        )

    def _names(self, model: str) -> dict[str, int]:
        """Versions that `default` and labels mean; empty while the model is not served."""
        try:
            config = self._client.get_model_config(
                model, headers=self._caller.headers, client_timeout=_TIMEOUT_SECONDS
            ).config
        except InferenceServerException as error:
            if error.status() in _NOT_SERVED:
                return {}
            raise InputError(failed_call(self._address, self._caller, error)) from error
        return {
            name.removeprefix(NAME_PARAMETER): int(value.string_value)
            for name, value in config.parameters.items()
            if name.startswith(NAME_PARAMETER) and value.string_value.isdigit()
        }

    def _read_page(
        self,
    ) -> tuple[
        dict[tuple[str, int], int],
        dict[tuple[str, int], float],
        dict[str, float],
        dict[tuple[str, int], ShadowFigures],
    ]:
        requests: dict[tuple[str, int], int] = {}
        shares: dict[tuple[str, int], float] = {}
        ages: dict[str, float] = {}
        samples = list(self._samples())
        for sample in samples:
            name, labels, value = sample.name, sample.labels, sample.value
            model = labels.get("model", "")
            if name == _REQUESTS and labels["version"].isdigit():
                key = (model, int(labels["version"]))
                requests[key] = requests.get(key, 0) + int(value)
            elif name == _SHARE:
                shares[model, int(labels["version"])] = value
            elif name == _AGE:
                ages[model] = value
        return requests, shares, ages, shadow_figures(samples)

    def _samples(self) -> Iterator[Sample]:
        return iter(()) if self._page is None else scraped_samples(self._page, self._caller)


@contextmanager
def watching(address: str, page: str | None, caller: Caller = ANONYMOUS) -> Iterator[ReleaseWatch]:
    """Open a watch of a server and optionally its metrics page; InputError unless host:port."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"address {address!r}: expected host:port")
    credentials = caller.channel_credentials()
    with InferenceServerClient(address, creds=credentials) as client:
        yield ReleaseWatch(client, address, page, caller)
