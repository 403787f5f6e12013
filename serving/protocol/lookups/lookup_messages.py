"""Messages of lookups between fronts and shard hosts (protos/sharded_infer/v1/shard_host.proto)."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from kernels.bags import Bags
from kernels.wording import counted
from serving.protocol.lookups.compiled_writer import compiled_lookups
from serving.protocol.lookups.version_key import VersionKey
from sharded_infer.errors import InternalError, RequestError
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.tensors import tensor_of
from sharded_infer.v1 import shard_host_pb2
from sharded_infer.v1.wire import bytes_field, message_field, number_field, text_field

SHARD_HOST_SERVICE = "sharded_infer.v1.ShardHost"
LOOKUP_PATH = f"/{SHARD_HOST_SERVICE}/Lookup"
DESCRIBE_PATH = f"/{SHARD_HOST_SERVICE}/Describe"
Message = bytes | NDArray[np.uint8]
_WIDTHS = (1, 2, 4, 8)
_LENGTH_WIDTHS = (1, 2, 4)
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
# Tags of a LookupResponse, and its last field.
_SUMS, _FILLER = 1 << 3 | _LENGTH_DELIMITED, 2 << 3
_LAST_FIELD = 4
_MOST_SHIFT = 63  # of a varint's bits


class Leases(NamedTuple):
    """What a front serves.

    Attributes:
        front: a number of its own, below 2**64; 0: it has none.
        served: versions that hosts are to keep.
    """

    front: int = 0
    served: tuple[VersionKey, ...] = ()


class Described(NamedTuple):
    """A version that a shard host holds its share of.

    Attributes:
        topology: name of the plan's topology.
        host: the host's number in it.
        digest: of the share, as `share_digest`.
    """

    key: VersionKey
    topology: str
    host: int
    digest: str


def write_describe(model: str, leases: Leases) -> bytes:
    """A serialized DescribeRequest."""
    served = (message_field(2, _key_bytes(key)) for key in leases.served)
    front = _fixed64_field(3, leases.front) if leases.front else b""
    return b"".join((text_field(1, model), *served, front))


def read_describe(message: bytes) -> tuple[str, Leases]:
    """Reads a DescribeRequest: the model, and what the caller serves.

    Raises:
        RequestError: the bytes are not such a message.
    """
    try:
        request = shard_host_pb2.DescribeRequest.FromString(message)
    except DecodeError as error:
        raise RequestError("the request is not a DescribeRequest") from error
    served = (VersionKey(one.model, one.version, one.manifest) for one in request.served)
    return request.model, Leases(request.front, tuple(served))


def read_described(message: memoryview) -> list[Described]:
    """Reads a DescribeResponse.

    Raises:
        InternalError: the bytes are not such a message.
    """
    try:
        found = shard_host_pb2.DescribeResponse.FromString(bytes(message)).versions
    except DecodeError as error:
        raise InternalError("the answer is not a DescribeResponse") from error
    return [
        Described(
            VersionKey(one.model, one.version, one.manifest),
            one.topology,
            one.host,
            one.share.hex(),
        )
        for one in found
    ]


def write_lookup(
    key: VersionKey, groups: Sequence[PieceBags], share: int = 0, *, rows: bool = False
) -> Message:
    """A serialized LookupRequest; numbers are as narrow as they fit.

    Compiled code writes it. `write_lookup_by_numpy` is its reference, and serves without it.

    Args:
        share: `digest_number` of the share that the host must hold; 0: any.
        rows: whether `read_answer` will read stored rows.
    """
    return write_lookups(key, [(groups, share)], rows=rows)[0]


def write_lookups(
    key: VersionKey, asked: Sequence[tuple[Sequence[PieceBags], int]], *, rows: bool = False
) -> Sequence[Message]:
    """As `write_lookup` of each host's groups and share."""
    written = compiled_lookups(key, asked, rows=rows)
    if written is None:
        return [write_lookup_by_numpy(key, groups, share, rows=rows) for groups, share in asked]
    return written


def write_lookup_by_numpy(
    key: VersionKey, groups: Sequence[PieceBags], share: int = 0, *, rows: bool = False
) -> bytes:
    """As `write_lookup`."""
    return b"".join(
        (
            _key_bytes(key),
            *(message_field(4, _group_bytes(group)) for group in groups),
            _fixed64_field(5, share) if share else b"",
            number_field(6, rows),
        )
    )


def read_lookup(message: bytes) -> tuple[VersionKey, int, list[PieceBags]]:
    """Reads a LookupRequest: the version, its share as `write_lookup` has it, and the groups.

    Raises:
        RequestError: the bytes are not such a message, or a group's arrays do not fit together.
    """
    try:
        request = shard_host_pb2.LookupRequest.FromString(message)
    except DecodeError as error:
        raise RequestError("the request is not a LookupRequest") from error
    key = VersionKey(request.model, request.version, request.manifest)
    groups = [_group_of(f"group {n}", group) for n, group in enumerate(request.groups)]
    return key, request.share, groups


def write_sums(sums: Sequence[NDArray[np.float32]]) -> bytes:
    """A serialized LookupResponse.

    Args:
        sums: for each group fp32 `[R, columns]`.
    """
    return b"".join(message_field(1, np.ascontiguousarray(one, "<f4").tobytes()) for one in sums)


def read_sums(message: memoryview, bags: Sequence[int]) -> list[NDArray[np.float32]]:
    """Reads a LookupResponse without rows; `compiled_reader.read_answer` reads the others.

    Args:
        bags: R of each group.

    Returns:
        For each group fp32 `[R, columns]`, views of the message.

    Raises:
        InternalError: the bytes are not such a message, or not one for these groups.
    """
    fields = list(_fields(message))
    if len(fields) != len(bags) or any(
        len(field) % (4 * rows) for field, rows in zip(fields, bags, strict=True)
    ):
        raise InternalError(
            f"the answer has sums of {[len(field) for field in fields]} bytes, expected fp32 of "
            f"{list(bags)} rows"
        )
    return [
        np.frombuffer(field, "<f4").reshape(rows, -1)
        for field, rows in zip(fields, bags, strict=True)
    ]


def _fields(message: memoryview) -> Iterator[memoryview]:
    """The sums of each group, without copies: they are most of the message's bytes."""
    at = 0
    while at < len(message):
        tag = message[at]
        if tag not in (_SUMS, _FILLER):
            at = _newer_field_end(message, at)
            continue
        number, at = _varint(message, at + 1)
        if tag == _FILLER:
            continue
        if number > len(message) - at:
            raise InternalError(f"the answer is not a LookupResponse: byte {at}")
        yield message[at : at + number]
        at += number


def _newer_field_end(message: memoryview, at: int) -> int:
    """Where a field ends that a newer release may have added."""
    tag, at = _varint(message, at)
    field, kind = tag >> 3, tag & 7
    size = _FIXED_BYTES.get(kind)
    if kind in (_VARINT, _LENGTH_DELIMITED):
        number, at = _varint(message, at)
        size = number if kind == _LENGTH_DELIMITED else 0
    if field <= _LAST_FIELD or size is None or size > len(message) - at:
        raise InternalError(f"the answer is not a LookupResponse: byte {at}")
    return at + size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of at most ten bytes, which may have more than it needs, and where it ends."""
    number = 0
    for shift in range(0, _MOST_SHIFT + 1, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise InternalError(f"the answer is not a LookupResponse: byte {at}")


def _key_bytes(key: VersionKey) -> bytes:
    manifest = _fixed64_field(3, key.manifest)
    return text_field(1, key.model) + number_field(2, key.version) + manifest


def _fixed64_field(field: int, number: int) -> bytes:
    return bytes((field << 3 | _FIXED64,)) + number.to_bytes(8, "little")


def _group_bytes(group: PieceBags) -> bytes:
    bags = group.bags
    lengths, length_bytes = _narrow(bags.lengths.numpy(), _LENGTH_WIDTHS)
    ids, id_bytes = _narrow(bags.values.numpy(), _WIDTHS)
    weights = b"" if bags.weights is None else bags.weights.numpy().astype("<f4").tobytes()
    return b"".join(
        (
            bytes_field(1, group.pieces.astype("<u4").tobytes()),
            bytes_field(2, lengths),
            number_field(3, length_bytes),
            bytes_field(4, ids),
            number_field(5, id_bytes),
            bytes_field(6, weights),
        )
    )


def _narrow(numbers: NDArray[np.int64], widths: Sequence[int]) -> tuple[bytes, int]:
    """The numbers' bytes, and how many each has."""
    most = int(numbers.max()) if numbers.size else 0
    width = next(width for width in widths if most < 1 << 8 * width)
    return numbers.astype(f"<u{width}").tobytes(), width


def _group_of(where: str, group: Any) -> PieceBags:
    pieces = np.array(group.pieces, np.int64)
    lengths = _wide(f"{where}: lengths", group.lengths, group.length_bytes, _LENGTH_WIDTHS)
    ids = _wide(f"{where}: ids", group.ids, group.id_bytes, _WIDTHS)
    if not pieces.size or not lengths.size or lengths.size % pieces.size:
        raise RequestError(
            f"{where}: {counted(lengths.size, 'length')} for {counted(pieces.size, 'piece')}: "
            "expected at least one bag for each, as many for all"
        )
    if int(lengths.sum()) != ids.size:
        raise RequestError(
            f"{where}: the lengths add up to {lengths.sum()}, there are {counted(ids.size, 'id')}"
        )
    weights = np.array(group.weights, np.float32) if group.weights else None
    if weights is not None and weights.size != ids.size:
        raise RequestError(
            f"{where}: {counted(weights.size, 'weight')} for {counted(ids.size, 'id')}"
        )
    bags = Bags(
        tensor_of(ids),
        tensor_of(lengths.reshape(pieces.size, -1)),
        None if weights is None else tensor_of(weights),
    )
    return PieceBags.of(pieces, bags)


def _wide(where: str, numbers: bytes, width: int, widths: Sequence[int]) -> NDArray[np.int64]:
    if width not in widths or len(numbers) % width:
        raise RequestError(
            f"{where}: {counted(len(numbers), 'byte')} of numbers of {counted(width, 'byte')}: "
            f"expected numbers of {', '.join(map(str, widths))} bytes"
        )
    return np.frombuffer(numbers, f"<u{width}").astype(np.int64)
