"""Messages of lookups, written by compiled code (`native/remote_lookup/write_lookup.cpp`)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.bags import Bags
from kernels.native_library import address_of
from serving.abi import lookup_messages as abi
from serving.protocol.lookups.version_key import VersionKey
from sharded_infer.lookups.shard_hosts import PieceBags

# Ids above which writing takes a tenth of a millisecond: other threads may run meanwhile.
_MANY = 1 << 16
_SHORT = abi.lookup_most_bytes_keeping_gil, abi.lookup_write_keeping_gil
_LONG = abi.lookup_most_bytes, abi.lookup_write


class Arrays(NamedTuple):
    """Addresses of bags that several hosts share; 0: no weights."""

    kept: object
    lengths: int
    values: int
    weights: int
    bags: int


def arrays_of(bags: Bags) -> Arrays:
    """Contiguous arrays of bags, which live as long as the result."""
    values, lengths = bags.values.contiguous(), bags.lengths.contiguous()
    weights = None if bags.weights is None else bags.weights.contiguous()
    return Arrays(
        (values, lengths, weights),
        lengths.data_ptr(),
        values.data_ptr(),
        0 if weights is None else weights.data_ptr(),
        lengths.shape[1],
    )


def compiled_lookups(
    key: VersionKey, asked: Sequence[tuple[Sequence[PieceBags], int]], *, rows: bool
) -> list[NDArray[np.uint8]]:
    """A serialized LookupRequest for each host's groups and share."""
    named = abi.Named(key.model.encode(), key.version, key.manifest)
    # `Asked` and `PieceBags` as numbers, which are filled much faster.
    hosts = np.array([(share, len(groups), rows) for groups, share in asked], np.uint64)
    arrays: dict[int, Arrays] = {}
    listed, ids = [], 0
    for groups, _ in asked:
        for group in groups:
            pieces, (of, first_entry, entries, first_id, count) = group.pieces, group.chosen
            # Hosts of a batch share arrays.
            found = arrays.get(id(of))
            if found is None:
                found = arrays[id(of)] = arrays_of(of)
            _, lengths, values, weights, bags = found
            listed.append(
                (
                    address_of(pieces),
                    lengths + 8 * bags * first_entry,
                    values + 8 * first_id,
                    weights and weights + 4 * first_id,
                    entries,
                    bags,
                    count,
                    group.sum_bytes,
                    group.raw,
                )
            )
            ids += count
    numbers = np.array(listed, np.int64)
    most_bytes, write = _SHORT if ids < _MANY else _LONG
    arguments = named, address_of(hosts), len(asked), address_of(numbers)
    room = np.empty(most_bytes(*arguments), np.uint8)
    sizes = np.empty(len(asked), np.int64)
    write(*arguments, address_of(room), address_of(sizes))
    messages, at = [], 0
    for size in sizes.tolist():
        messages.append(room[at : at + size])
        at += size
    return messages
