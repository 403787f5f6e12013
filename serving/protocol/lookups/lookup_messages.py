"""Lookup messages of fronts and shard hosts (protos/sharded_infer/v1/shard_host.proto)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from kernels.bags import Bags
from kernels.wording import counted
from serving.protocol.lookups.compiled_writer import compiled_lookups
from serving.protocol.lookups.sum_messages import BF16_BYTES, FP32_BYTES
from serving.protocol.lookups.version_key import VersionKey
from serving.protocol.message_size import HELD_LIMITS, LEASE_LIMITS, LOOKUP_LIMITS, check_size
from serving.protocol.wire_numbers import numbers_of
from sharded_infer.errors import InternalError, RequestError, RequestTooLargeError
from sharded_infer.lookups.shard_hosts import PieceBags, all_bags
from sharded_infer.tensors import tensor_of
from sharded_infer.v1 import shard_host_pb2
from sharded_infer.v1.wire import message_field, number_field, text_field

SHARD_HOST_SERVICE = "sharded_infer.v1.ShardHost"
LOOKUP_PATH = f"/{SHARD_HOST_SERVICE}/Lookup"
DESCRIBE_PATH = f"/{SHARD_HOST_SERVICE}/Describe"
Message = bytes | NDArray[np.uint8]
_WIDTHS = (1, 2, 4, 8)
_LENGTH_WIDTHS = (1, 2, 4)
_FIXED64 = 1  # the wire type


class Leases(NamedTuple):
    """Versions that a front serves, and that hosts must keep.

    Attributes:
        front: a unique number below 2**64; 0: none.
    """

    front: int = 0
    served: tuple[VersionKey, ...] = ()


class Described(NamedTuple):
    """A version whose share a shard host holds.

    Attributes:
        topology: name of the plan's topology.
        host: the host's number in it.
        digest: `share_digest` of the share.
    """

    key: VersionKey
    topology: str
    host: int
    digest: str


def write_describe(model: str, leases: Leases) -> bytes:
    """Serializes a DescribeRequest."""
    served = (message_field(2, _key_bytes(key)) for key in leases.served)
    front = _fixed64_field(3, leases.front) if leases.front else b""
    return b"".join((text_field(1, model), *served, front))


def read_describe(message: bytes) -> tuple[str, Leases]:
    """Reads the model and leases of a DescribeRequest; raises RequestError for other bytes."""
    check_size(message, LEASE_LIMITS)
    try:
        request = shard_host_pb2.DescribeRequest.FromString(message)
    except DecodeError as error:
        raise RequestError("the request is not a DescribeRequest") from error
    served = (VersionKey(one.model, one.version, one.manifest) for one in request.served)
    return request.model, Leases(request.front, tuple(served))


def read_described(message: memoryview) -> list[Described]:
    """Reads a DescribeResponse; raises InternalError for other bytes."""
    try:
        check_size(message, HELD_LIMITS)
        found = shard_host_pb2.DescribeResponse.FromString(bytes(message)).versions
    except (DecodeError, RequestTooLargeError) as error:
        raise InternalError(f"the answer is not a DescribeResponse: {error}") from error
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
    """Serializes a LookupRequest; numbers are as narrow as they fit.

    Args:
        share: `digest_number` of the share that the host must hold; 0: any.
        rows: `read_answer` will read stored rows.
    """
    return write_lookups(key, [(groups, share)], rows=rows)[0]


def write_lookups(
    key: VersionKey, asked: Sequence[tuple[Sequence[PieceBags], int]], *, rows: bool = False
) -> Sequence[Message]:
    """As `write_lookup` of each host's groups and share."""
    return compiled_lookups(key, asked, rows=rows)


def read_lookup(message: bytes) -> tuple[VersionKey, int, list[PieceBags]]:
    """Reads a LookupRequest: the version, the share's digest number, and the groups.

    Raises RequestError if the bytes are malformed, or a group's arrays do not fit together.
    """
    check_size(message, LOOKUP_LIMITS)
    try:
        request = shard_host_pb2.LookupRequest.FromString(message)
    except DecodeError as error:
        raise RequestError("the request is not a LookupRequest") from error
    key = VersionKey(request.model, request.version, request.manifest)
    groups = [_group_of(f"group {n}", group) for n, group in enumerate(request.groups)]
    return key, request.share, groups


def _key_bytes(key: VersionKey) -> bytes:
    manifest = _fixed64_field(3, key.manifest)
    return text_field(1, key.model) + number_field(2, key.version) + manifest


def _fixed64_field(field: int, number: int) -> bytes:
    return bytes((field << 3 | _FIXED64,)) + number.to_bytes(8, "little")


def _group_of(where: str, group: Any) -> PieceBags:
    pieces = numbers_of(group.pieces, np.int64)
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
    weights = numbers_of(group.weights, np.float32) if group.weights else None
    if weights is not None and weights.size != ids.size:
        raise RequestError(
            f"{where}: {counted(weights.size, 'weight')} for {counted(ids.size, 'id')}"
        )
    bags = Bags(
        tensor_of(ids),
        tensor_of(lengths.reshape(pieces.size, -1)),
        None if weights is None else tensor_of(weights),
    )
    sum_bytes = group.sum_bytes or FP32_BYTES
    if sum_bytes not in (FP32_BYTES, BF16_BYTES):
        raise RequestError(
            f"{where}: sums of {counted(sum_bytes, 'byte')} each, expected 2 or 4 bytes"
        )
    return PieceBags(pieces, all_bags(bags), sum_bytes=sum_bytes, raw=group.raw)


def _wide(where: str, numbers: bytes, width: int, widths: Sequence[int]) -> NDArray[np.int64]:
    if width not in widths or len(numbers) % width:
        raise RequestError(
            f"{where}: {counted(len(numbers), 'byte')} of numbers of {counted(width, 'byte')}: "
            f"expected numbers of {', '.join(map(str, widths))} bytes"
        )
    return np.frombuffer(numbers, f"<u{width}").astype(np.int64)
