"""Unknown raw ids in a LookupResponse (protos/sharded_infer/v1/shard_host.proto)."""

from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from serving.protocol.message_size import ANSWER_LIMITS, check_size
from serving.protocol.wire_numbers import numbers_of
from sharded_infer.errors import InternalError, RequestTooLargeError
from sharded_infer.lookups.raw_ids import UnknownId
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.v1 import shard_host_pb2
from sharded_infer.v1.wire import bytes_field

Counts = NDArray[np.int64]


def write_unknown(groups: Sequence[PieceBags], unknown: Sequence[Counts | None]) -> bytes:
    """Field with each bag's number of unknown ids, by group as in `GroupAnswer`; empty: none."""
    if all(counts is None for counts in unknown):
        return b""
    fields = (
        np.zeros(group.bags.lengths.shape) if counts is None else counts
        for group, counts in zip(groups, unknown, strict=True)
        if group.raw
    )
    return bytes_field(5, b"".join(counts.astype("<u4").tobytes() for counts in fields))


def read_unknown(message: memoryview, groups: Sequence[PieceBags]) -> list[Counts | None]:
    """Reads the field of `write_unknown`, for each group.

    Raises InternalError if the bytes are malformed, or do not fit these groups.
    """
    counts = numbers_of(_parsed(message).unknown, np.int64)
    shapes = [tuple(group.bags.lengths.shape) for group in groups]
    sizes = [int(np.prod(shape)) * group.raw for group, shape in zip(groups, shapes, strict=True)]
    if len(counts) not in (0, sum(sizes)):
        raise InternalError(
            f"the answer has {4 * len(counts)} bytes of numbers of unknown ids, expected "
            f"{4 * sum(sizes)}"
        )
    found: list[Counts | None] = []
    for group, shape, size in zip(groups, shapes, sizes, strict=True):
        found.append(counts[:size].reshape(shape) if len(counts) and group.raw else None)
        counts = counts[size:]
    return found


def write_refusal(where: UnknownId) -> bytes:
    """A LookupResponse that refuses a raw id."""
    refused = shard_host_pb2.UnknownId(
        group=where.group, entry=where.entry, bag=where.bag, raw_id=where.raw_id
    )
    return shard_host_pb2.LookupResponse(refused=refused).SerializeToString()


def read_refusal(message: memoryview, groups: Sequence[PieceBags]) -> UnknownId | None:
    """The raw id that a LookupResponse refuses, or None.

    Raises InternalError if the bytes are malformed, or name no bag of raw ids of these groups.
    """
    answer = _parsed(message)
    if not answer.HasField("refused"):
        return None
    one = answer.refused
    where = UnknownId(one.group, one.entry, one.bag, one.raw_id)
    group = groups[where.group] if where.group < len(groups) else None
    if (
        group is None
        or not group.raw
        or where.entry >= len(group.pieces)
        or where.bag >= group.chosen.bag_count
    ):
        raise InternalError(
            f"the answer refuses an id of group {where.group}, entry {where.entry}, bag "
            f"{where.bag}, where no raw id was asked for"
        )
    return where


def _parsed(message: memoryview) -> shard_host_pb2.LookupResponse:
    try:
        check_size(message, ANSWER_LIMITS)
        return shard_host_pb2.LookupResponse.FromString(bytes(message))
    except (DecodeError, RequestTooLargeError) as error:
        raise InternalError(f"the answer is not a LookupResponse: {error}") from error
