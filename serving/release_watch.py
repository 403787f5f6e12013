"""What a running server says of its versions: its index, and its metrics page if it has one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from prometheus_client.samples import Sample
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from serving.caller import ANONYMOUS, Caller
from serving.failed_call import failed_call
from serving.scraped_page import scraped_samples
from serving.version_policy import NAME_PARAMETER
from sharded_infer.errors import InputError

_TIMEOUT_SECONDS = 5.0
# While nothing of a model is served, or no longer.
_NOT_SERVED = ("StatusCode.NOT_FOUND", "StatusCode.UNAVAILABLE")
_AGE = "sharded_infer_served_age_seconds"
_REQUESTS = "sharded_infer_requests_total"


@dataclass(frozen=True, slots=True)
class WatchedVersion:
    """A version as a server knows it.

    Attributes:
        model: its model.
        version: its number.
        state: READY, LOADING or UNAVAILABLE.
        reason: why, for people.
        names: labels that mean it here, and `default`.
        requests: answered by it; None without a metrics page.
    """

    model: str
    version: int
    state: str
    reason: str
    names: tuple[str, ...] = ()
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """A server at one moment.

    Attributes:
        versions: by model and number.
        age_seconds: of the default version, by model; empty without a metrics page.
    """

    versions: tuple[WatchedVersion, ...]
    age_seconds: MappingProxyType[str, float]


class ReleaseWatch:
    """Asks a server again and again."""

    def __init__(
        self, client: InferenceServerClient, address: str, page: str | None, caller: Caller
    ) -> None:
        """Asks nothing yet; see `watching`.

        Args:
            client: of the server.
            address: its host:port, for errors.
            page: the URL of its metrics page, or None.
            caller: who asks.
        """
        self._client = client
        self._address = address
        self._caller = caller
        self._page = page

    def look(self) -> Watched:
        """Asks once.

        Raises:
            InputError: the server, or its metrics page, does not answer, or refuses the caller.
        """
        try:
            index = self._client.get_model_repository_index(
                headers=self._caller.headers, client_timeout=_TIMEOUT_SECONDS
            )
        except InferenceServerException as error:
            raise InputError(failed_call(self._address, self._caller, error)) from error
        requests, ages = self._read_page()
        ready = dict.fromkeys(entry.name for entry in index.models if entry.state == "READY")
        names = {model: self._names(model) for model in ready}
        versions = []
        for entry in index.models:
            key = (entry.name, int(entry.version or 0))
            answered = None if self._page is None else requests.get(key, 0)
            meant = names.get(entry.name, {})
            named = tuple(sorted(name for name, version in meant.items() if version == key[1]))
            versions.append(WatchedVersion(*key, entry.state, entry.reason, named, answered))
        return Watched(
            tuple(sorted(versions, key=lambda one: (one.model, one.version))),
            MappingProxyType(ages),
        )

    def _names(self, model: str) -> dict[str, int]:
        """The versions that `default` and labels mean; none while the model is not served."""
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

    def _read_page(self) -> tuple[dict[tuple[str, int], int], dict[str, float]]:
        requests: dict[tuple[str, int], int] = {}
        ages: dict[str, float] = {}
        for sample in self._samples():
            name, labels, value = sample.name, sample.labels, sample.value
            model = labels.get("model", "")
            if name == _REQUESTS and labels["version"].isdigit():
                key = (model, int(labels["version"]))
                requests[key] = requests.get(key, 0) + int(value)
            elif name == _AGE:
                ages[model] = value
        return requests, ages

    def _samples(self) -> Iterator[Sample]:
        return iter(()) if self._page is None else scraped_samples(self._page, self._caller)


@contextmanager
def watching(address: str, page: str | None, caller: Caller = ANONYMOUS) -> Iterator[ReleaseWatch]:
    """A watch of a server, until the end.

    Args:
        address: host:port of its gRPC port.
        page: the URL of its metrics page, or None.
        caller: who asks both.

    Raises:
        InputError: the address is of another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"address {address!r}: expected host:port")
    credentials = caller.channel_credentials()
    with InferenceServerClient(address, creds=credentials) as client:
        yield ReleaseWatch(client, address, page, caller)
