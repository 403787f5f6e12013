"""Loaded versions and the names of their requests, for compiled code."""

import ctypes
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from serving.abi import calls as abi
from serving.errors import UnavailableError
from serving.routing.router import shared_model
from serving.versions.loaded_version import LoadedVersion
from serving.versions.served_versions import Names, Shares


class Routes:
    """Versions by the address of their compiled `Route`."""

    def __init__(self, calls: int) -> None:
        """Starts without versions; `calls` is the address of the compiled `Calls`."""
        self._calls = calls
        # Routes without names stay while calls refer to them.
        self._versions: dict[int, LoadedVersion] = {}
        self._addresses: dict[int, int] = {}
        self._leaving: set[int] = set()
        self._lock = threading.Lock()
        # Calls that Python rewrites, by their routes.
        self._reading: Counter[int] = Counter()

    @contextmanager
    def reading(self, version: LoadedVersion) -> Iterator[int]:
        """The address of a version's route, which stays while a call is rewritten.

        Raises UnavailableError if the version has just been unloaded.
        """
        with self._lock:
            route = self._addresses.get(id(version))
            if route is None:
                raise UnavailableError(f"{version.model.name!r}: the version was unloaded just now")
            self._reading[route] += 1
        try:
            yield route
        finally:
            with self._lock:
                self._reading[route] -= 1

    def version(self, route: int) -> LoadedVersion:
        """Version of a route."""
        return self._versions[route]

    def __len__(self) -> int:
        """Number of versions, including those that only wait for their last calls."""
        return len(self._versions)

    def add(self, version: LoadedVersion) -> None:
        """Adds a version, whose calls may name it by `set_names`."""
        reader, spec = version.reader, version.model.spec
        outputs = _texts(spec.tower.outputs)
        tables = _texts([table.name for table in spec.mapped_tables])
        settings = abi.RouteSettings(
            ctypes.addressof(reader.native.model),
            version.queue.address,
            version.model.name.encode(),
            version.model.version,
            ctypes.addressof(outputs),
            len(outputs),
            ctypes.addressof(tables),
            reader.refuses_non_finite,
        )
        route = abi.calls_route(settings)
        self._versions[route] = version
        self._addresses[id(version)] = route

    def remove(self, version: LoadedVersion) -> None:
        """Releases a version without a name, when its last call is answered."""
        with self._lock:
            self._leaving.add(self._addresses[id(version)])
            for route in self._leaving.copy():
                calls = abi.calls_route_calls(route)
                if not calls and not self._reading[route]:
                    self._leaving.remove(route)
                    del self._reading[route]
                    del self._addresses[id(self._versions.pop(route))]
                    abi.calls_route_destroy(route)

    def set_names(self, served: Names, shared: Shares = MappingProxyType({})) -> None:
        """Sets the versions of names, and those that share requests without a name."""
        named = [
            abi.NamedRoute(model.encode(), name.encode(), self._addresses[id(version)])
            for (model, name), version in served.items()
            if name or model not in shared
        ]
        shares: list[abi.WeightedRoute] = []
        for model, versions in shared.items():
            choice = shared_model(model, versions)
            shares += (
                abi.WeightedRoute(
                    model.encode(),
                    choice.seed,
                    weighted.label.encode(),
                    label_hash,
                    weight,
                    self._addresses[id(weighted.version)],
                )
                for weighted, (label_hash, weight) in zip(versions, choice.shares, strict=True)
            )
        abi.calls_set_names(
            self._calls,
            (abi.NamedRoute * len(named))(*named),
            len(named),
            (abi.WeightedRoute * len(shares))(*shares),
            len(shares),
        )


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
