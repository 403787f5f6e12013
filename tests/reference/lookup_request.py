"""Messages of lookups in NumPy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving.protocol.lookups.sum_messages import FP32_BYTES
from serving.protocol.lookups.version_key import VersionKey
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.v1.wire import bytes_field, message_field, number_field, text_field

_WIDTHS = (1, 2, 4, 8)
_LENGTH_WIDTHS = (1, 2, 4)
_FIXED64 = 1  # the wire type


def write_lookup_by_numpy(
    key: VersionKey, groups: Sequence[PieceBags], share: int = 0, *, rows: bool = False
) -> bytes:
    """As `lookup_messages.write_lookup`."""
    return b"".join(
        (
            _key_bytes(key),
            *(message_field(4, _group_bytes(group)) for group in groups),
            _fixed64_field(5, share) if share else b"",
            number_field(6, rows),
        )
    )


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
            number_field(7, group.sum_bytes if group.sum_bytes != FP32_BYTES else 0),
            number_field(8, group.raw),
        )
    )


def _narrow(numbers: NDArray[np.int64], widths: Sequence[int]) -> tuple[bytes, int]:
    """The numbers' bytes, and how many each has."""
    # Raw ids may be negative: all bits count.
    most = int(numbers.astype(np.uint64).max()) if numbers.size else 0
    width = next(width for width in widths if most < 1 << 8 * width)
    return numbers.astype(f"<u{width}").tobytes(), width
