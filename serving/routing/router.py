"""Routes a request to a loaded version: the one it names, or one by the weights of labels."""

from collections.abc import Callable
from typing import NamedTuple

from serving.protocol.request_header import RequestHeader
from serving.routing.weighted_choice import choose, key_position, name_hash
from serving.versions.loaded_version import LoadedVersion, WeightedVersion
from serving.versions.served_versions import Names, ServedVersions, Shares


class Route(NamedTuple):
    """Version of a request, and the label whose weight decided; empty: none did."""

    version: LoadedVersion
    label: str = ""


class SharedModel(NamedTuple):
    """Labels that share a model's requests without a version.

    Attributes:
        seed: of the model's routing keys.
        shares: hash and weight of each label.
        versions: in the same order.
    """

    seed: int
    shares: tuple[tuple[int, int], ...]
    versions: tuple[WeightedVersion, ...]


def shared_model(model: str, versions: tuple[WeightedVersion, ...]) -> SharedModel:
    """Prepares the choice among weighted versions of a model."""
    shares = tuple((name_hash(one.label), one.weight) for one in versions)
    return SharedModel(name_hash(model), shares, versions)


class Router:
    """Routes the requests of one process. Thread-safe."""

    def __init__(self, store: ServedVersions) -> None:
        self._store = store
        # Replaced, never changed.
        self._shared: dict[str, SharedModel] = {}
        store.on_names(self._set)

    def route(self, header: RequestHeader, chance: Callable[[], int]) -> Route:
        """Version of a request; without a routing key by the 64 bits of `chance`.

        Raises:
            NotFoundError, UnavailableError: as `ServedVersions.get`.
            InputError: it has a routing key, and the package was built without a compiler.
        """
        if not header.model_version:
            shared = self._shared.get(header.model_name)
            if shared is not None:
                return _chosen(shared, header.routing_key, chance)
        return Route(self._store.get(header.model_name, header.model_version))

    def _set(self, _names: Names, shares: Shares) -> None:
        self._shared = {model: shared_model(model, versions) for model, versions in shares.items()}


def _chosen(shared: SharedModel, key: bytes, chance: Callable[[], int]) -> Route:
    position = key_position(key, shared.seed) if key else chance()
    one = shared.versions[choose(position, shared.shares)]
    return Route(one.version, one.label)
