"""Messages of lookups by protobuf, with arrays of NumPy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving.protocol.lookups.version_key import VersionKey
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.v1 import shard_host_pb2


def write_lookup_by_numpy(
    key: VersionKey, groups: Sequence[PieceBags], share: int = 0, *, rows: bool = False
) -> bytes:
    """As `lookup_messages.write_lookup`."""
    request = shard_host_pb2.LookupRequest(share=share, rows=rows, **key._asdict())
    for group in groups:
        bags = group.bags
        lengths, length_bytes = _narrow(bags.lengths.numpy())
        ids, id_bytes = _narrow(bags.values.numpy())
        request.groups.add(
            pieces=group.pieces.tolist(),
            lengths=lengths,
            length_bytes=length_bytes,
            ids=ids,
            id_bytes=id_bytes,
            weights=None if bags.weights is None else bags.weights.tolist(),
            sum_bytes=0 if group.sum_bytes == 4 else group.sum_bytes,
            raw=group.raw,
        )
    return request.SerializeToString()


def _narrow(numbers: NDArray[np.int64]) -> tuple[bytes, int]:
    """The numbers' bytes, and how many each has."""
    # Raw ids may be negative: all bits count.
    most = int(numbers.astype(np.uint64).max(initial=0))
    width = next(width for width in (1, 2, 4, 8) if most < 1 << 8 * width)
    return numbers.astype(f"<u{width}").tobytes(), width
