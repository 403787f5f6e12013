"""Loaded versions with held calls, and the names of their requests."""

import ctypes
from types import MappingProxyType

from serving.inference.held_calls_library import (
    MOST_OUTPUTS,
    NameStruct,
    RouteStruct,
    ShareStruct,
)
from serving.protocol.readers.native_reader import NativeReader
from serving.routing.router import shared_model
from serving.versions.loaded_version import LoadedVersion
from serving.versions.served_versions import Names, Shares
from sharded_infer.errors import InternalError


class HeldVersions:
    """Versions by the address of their compiled `Route`."""

    def __init__(self, library: ctypes.PyDLL, calls: int) -> None:
        """Starts without versions; `calls` is the address of the compiled `Calls`."""
        self._library, self._calls = library, calls
        # Routes without names stay while calls refer to them.
        self._versions: dict[int, LoadedVersion] = {}
        self._leaving: set[int] = set()

    def at(self, route: int) -> LoadedVersion:
        """Version of a route."""
        return self._versions[route]

    def __len__(self) -> int:
        """Number of versions, including those that only wait for their last calls."""
        return len(self._versions)

    def add(self, version: LoadedVersion) -> None:
        """Prepares a version; its calls are held when it has a name."""
        reader, queue = version.io.reader.native, version.queue
        outputs = tuple(name.encode() for name in version.model.spec.tower.outputs)
        if reader is None or len(outputs) > MOST_OUTPUTS:
            return
        if version.model.spec.sequences:
            # Compiled code counts samples, while the work of sequences depends on their lengths.
            return
        settings = RouteStruct(
            ctypes.pointer(reader.model),
            queue.address,
            version.model.name.encode(),
            version.model.version,
            (ctypes.c_char_p * len(outputs))(*outputs),
            len(outputs),
        )
        route = self._library.sharded_infer_calls_route(settings)
        self._versions[route] = version

    def remove(self, version: LoadedVersion) -> None:
        """Releases a version without a name, when its last call is answered."""
        self._leaving |= {route for route, one in self._versions.items() if one is version}
        for route in self._leaving.copy():
            if not self._library.sharded_infer_calls_route_held(route):
                self._leaving.remove(route)
                del self._versions[route]
                self._library.sharded_infer_calls_route_destroy(route)

    def set_names(self, served: Names, shared: Shares = MappingProxyType({})) -> None:
        """Sets the versions of names, and those that share requests without a name."""
        routes = {id(version): route for route, version in self._versions.items()}
        named = [
            NameStruct(model.encode(), name.encode(), routes[id(version)])
            for (model, name), version in served.items()
            if id(version) in routes and (name or model not in shared)
        ]
        shares: list[ShareStruct] = []
        for model, versions in shared.items():
            # Python takes all of a name's calls if compiled code cannot take some.
            if all(id(one.version) in routes for one in versions):
                choice = shared_model(model, versions)
                shares += (
                    ShareStruct(
                        model.encode(), choice.seed, one.label.encode(), label_hash, weight,
                        routes[id(one.version)],
                    )
                    for one, (label_hash, weight) in zip(versions, choice.shares, strict=True)
                )  # fmt: skip
        self._library.sharded_infer_calls_set_names(
            self._calls,
            (NameStruct * len(named))(*named),
            len(named),
            (ShareStruct * len(shares))(*shares),
            len(shares),
        )


def reader_of(version: LoadedVersion) -> NativeReader:
    """Compiled reader of a held version."""
    reader = version.io.reader.native
    if reader is None:
        raise InternalError("calls are held for a version without a compiled reader")
    return reader
