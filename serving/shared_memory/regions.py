"""Registered shared memory of a server, known to all its processes.

Each use opens the object by its name and checks that it is still the registered one. All workers
therefore agree on a region, and none keeps it open.
"""

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from kernels.wording import counted
from serving.errors import AlreadyExistsError, LimitError
from serving.host.shared_document import LockedDocument
from serving.shared_memory.region_file import RegionFile
from sharded_infer.errors import NotFoundError, RequestError

MOST_REGIONS = 1024
_MOST_NAME_BYTES = 255
_DOCUMENT_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Region:
    """A client's registered part of a shared memory object, by bytes from the object's start.

    `name` is for requests, `key` is the object's, and `identity` is the object's at registration.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    identity: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a region, by bytes from the region's start."""

    region: str
    offset: int
    byte_size: int


Regions = dict[str, Region]
_REGIONS: TypeAdapter[Regions] = TypeAdapter(Regions)


class SharedMemory:
    """Registered regions of one server. Create it before any fork; thread-safe."""

    def __init__(self, *, most_bytes: int) -> None:
        """Starts without regions; `most_bytes` bounds the inputs of one request."""
        self._document = LockedDocument(_DOCUMENT_BYTES, _REGIONS, {})
        self._known: tuple[int, Regions] = (-1, {})
        self.most_bytes = most_bytes

    def regions(self) -> Regions:
        """Registered regions by name."""
        known = self._known
        if known[0] != self._document.sequence:
            self._known = known = self._document.read()
        return known[1]

    def register(self, name: str, key: str, *, offset: int, byte_size: int) -> None:
        """Registers a region of the shared memory object `key`.

        Raises:
            RequestError: the name or key is invalid, or the object is too short.
            NotFoundError: the object does not exist.
            AlreadyExistsError: a region of this name exists.
            LimitError: there are too many regions.
        """
        if not name or len(name.encode()) > _MOST_NAME_BYTES:
            raise RequestError(
                f"shared memory region: expected a name of 1 to {_MOST_NAME_BYTES} bytes, "
                f"got {name[:_MOST_NAME_BYTES]!r}"
            )
        with RegionFile(key) as file:
            size, identity = file.size, file.identity
        if offset < 0 or byte_size < 1 or offset + byte_size > size:
            raise RequestError(
                f"shared memory region {name!r}: {counted(byte_size, 'byte')} from "
                f"{offset} would not be in "
                f"object {key!r} of {counted(size, 'byte')}"
            )
        region = Region(name, key, offset, byte_size, identity)

        def add(regions: Regions) -> Regions:
            if name in regions:
                raise AlreadyExistsError(f"shared memory region {name!r} is registered already")
            if len(regions) >= MOST_REGIONS:
                raise LimitError(f"{MOST_REGIONS} shared memory regions are registered, no more")
            return {**regions, name: region}

        self._document.change(add)

    def unregister(self, name: str) -> None:
        """Unregisters a region, or with an empty name all. An unknown name is no error."""

        def remove(regions: Regions) -> Regions:
            return {n: region for n, region in regions.items() if name and n != name}

        self._document.change(remove)

    def find(self, name: str) -> Region:
        """Region of a name. Raises NotFoundError if it is not registered."""
        region = self.regions().get(name)
        if region is None:
            raise NotFoundError(f"no shared memory region {name!r} is registered")
        return region

    def check(self, span: Span, what: str) -> Region:
        """Region of a span, whose tensor is `what` in messages.

        Raises:
            NotFoundError: the region does not exist.
            RequestError: the span is not inside it.
        """
        region = self.regions().get(span.region)
        if region is None:
            raise NotFoundError(f"{what}: no shared memory region {span.region!r} is registered")
        if span.offset < 0 or span.byte_size < 0:
            raise RequestError(
                f"{what}: expected a shared memory offset and size of 0 or more, "
                f"got {span.offset} and {span.byte_size}"
            )
        if span.offset + span.byte_size > region.byte_size:
            raise RequestError(
                f"{what}: {counted(span.byte_size, 'byte')} from {span.offset} would "
                "not be in shared memory "
                f"region {region.name!r} of {counted(region.byte_size, 'byte')}"
            )
        return region

    def read(self, span: Span, what: str) -> bytes:
        """Reads a span, whose tensor is `what` in messages.

        Raises:
            NotFoundError: the region does not exist.
            RequestError: the span is not inside it, or its object is missing, replaced or
                truncated.
        """
        region = self.check(span, what)
        with _opened(region) as file:
            return file.read(region.offset + span.offset, span.byte_size)

    def write(self, span: Span, data: bytes, what: str) -> None:
        """Writes bytes to a span; raises as `read`, and RequestError for more than its bytes."""
        region = self.check(span, what)
        if len(data) > span.byte_size:
            raise RequestError(
                f"{what}: {counted(len(data), 'byte')} cannot fit in the "
                f"{span.byte_size} of shared memory "
                f"region {region.name!r} that are meant for it"
            )
        with _opened(region) as file:
            file.write(region.offset + span.offset, data)


def _opened(region: Region) -> RegionFile:
    try:
        file = RegionFile(region.key)
    except NotFoundError as error:
        raise RequestError(f"shared memory region {region.name!r} has vanished: {error}") from error
    if file.identity != region.identity:
        with file:
            raise RequestError(
                f"shared memory region {region.name!r}: object {region.key!r} is another one now; "
                "expected the one that was registered"
            )
    return file
