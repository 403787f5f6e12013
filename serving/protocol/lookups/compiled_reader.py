"""Lookup responses, read by compiled code: sums, and rows, which it pools.

The pseudocode is in `native/remote_lookup/read_answer.cpp`. NumPy reads answers of pieces
whose rows are not known: these have sums alone.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.backends.native import kernel_for_compiled_code
from kernels.native_library import address_of
from serving.abi import lookup_messages as abi
from serving.abi.lookup_messages import Refusal
from serving.protocol.lookups.compiled_writer import Arrays, arrays_of
from serving.protocol.lookups.sum_messages import read_sums
from serving.protocol.lookups.unknown_messages import read_refusal, read_unknown
from sharded_infer.errors import InternalError
from sharded_infer.lookups.raw_ids import UnknownIdError
from sharded_infer.lookups.shard_hosts import GroupAnswer, PieceBags
from sharded_infer.tensors import tensor_of

# Ids, or response bytes, above which reading takes a tenth of a millisecond: other threads may run
# meanwhile.
_MANY = 1 << 15
_KERNEL = kernel_for_compiled_code()
_REASONS = {
    Refusal.NO_RESPONSE: "is not a LookupResponse: byte {got}",
    Refusal.OTHER_GROUPS: "has sums of {got} groups, expected {expected}",
    Refusal.OTHER_SUMS: "has sums of {got} bytes, expected {expected} for group {group}",
    Refusal.OTHER_ENTRIES: "has {got} bytes of numbers of rows, expected {expected}",
    Refusal.OTHER_ROWS: "has {got} rows for entry {entry} of group {group}, expected {expected}",
    Refusal.FEW_ROW_BYTES: "has {got} bytes of rows for entry {entry} of group {group} and later "
    "ones, expected {expected}",
    Refusal.MORE_ROW_BYTES: "has {got} bytes of rows, expected {expected}",
    Refusal.OTHER_UNKNOWN: "has {got} bytes of numbers of unknown ids, expected {expected}",
}


def reads_rows(groups: Sequence[PieceBags]) -> bool:
    """Whether the host may answer with stored rows."""
    return all(group.stored is not None for group in groups)


def read_answer(message: memoryview, groups: Sequence[PieceBags]) -> list[GroupAnswer]:
    """Reads a LookupResponse for the requested groups, and pools its rows.

    Some of the results are views of the message.

    Raises:
        UnknownIdError: the host refuses a raw id.
        InternalError: the bytes are not such a message, or not one for these groups.
    """
    try:
        if not reads_rows(groups):
            answers = _read_by_numpy(message, groups)
        else:
            answers = _read(message, groups)
    except InternalError:
        refused = read_refusal(message, groups) if any(group.raw for group in groups) else None
        if refused is None:
            raise
        raise UnknownIdError(refused) from None
    for number, (answer, group) in enumerate(zip(answers, groups, strict=True)):
        if answer.unknown is not None and (answer.unknown > group.bags.lengths.numpy()).any():
            raise InternalError(f"the answer has more unknown ids than group {number} has ids")
    return answers


def _read_by_numpy(message: memoryview, groups: Sequence[PieceBags]) -> list[GroupAnswer]:
    bags = [group.chosen.bag_count for group in groups]
    sums = map(tensor_of, read_sums(message, bags, [group.sum_bytes for group in groups]))
    if not any(group.raw for group in groups):
        return list(map(GroupAnswer, sums))
    return list(map(GroupAnswer, sums, read_unknown(message, groups)))


def _read(message: memoryview, groups: Sequence[PieceBags]) -> list[GroupAnswer]:
    listed = (abi.AskedGroup * len(groups))()
    pooled = []
    arrays: dict[int, Arrays] = {}
    ids = 0
    for to, group in zip(listed, groups, strict=True):
        if group.stored is None:
            raise InternalError("an answer with rows of pieces whose rows are not known")
        of, first_entry, entries, first_id, count = group.chosen
        found = arrays.get(id(of))
        if found is None:
            found = arrays[id(of)] = arrays_of(of)
        _, lengths, values, weights, bag_count = found
        to.pieces = address_of(group.stored.pieces)
        to.lengths, to.ids = lengths + 8 * bag_count * first_entry, values + 8 * first_id
        to.weights = weights and weights + 4 * first_id
        to.entries, to.bags = entries, bag_count
        to.id_count, to.columns = count, group.stored.columns
        to.sum_bytes, to.raw = group.sum_bytes, group.raw
        # Unwritten memory costs nothing.
        out = torch.empty(bag_count, group.stored.columns)
        to.pooled = out.data_ptr()
        pooled.append(out)
        ids += count
    content = np.frombuffer(message, np.uint8)
    base, size = content.ctypes.data, len(content)
    refused = abi.Refused()
    read_answer = abi.answer_read_keeping_gil if max(ids, size) < _MANY else abi.answer_read
    kernel = _KERNEL.address, _KERNEL.instruction_set
    if read_answer(base, size, listed, len(groups), *kernel, refused):
        words = {name: getattr(refused, name) for name, _ in abi.Refused._fields_[1:]}
        reason = _REASONS[Refusal(refused.reason)].format(**words)
        raise InternalError(f"the answer {reason}")
    return [
        GroupAnswer(
            out if read.sums is None else _view(message, read.sums - base, out),
            None if read.unknown is None else _counts(message, read.unknown - base, read),
        )
        for read, out in zip(listed, pooled, strict=True)
    ]


def _counts(message: memoryview, at: int, of: abi.AskedGroup) -> NDArray[np.int64]:
    counts = np.frombuffer(message, "<u4", of.entries * of.bags, at)
    return counts.reshape(of.entries, of.bags).astype(np.int64)


def _view(message: memoryview, at: int, like: Tensor) -> Tensor:
    rows, columns = like.shape
    return tensor_of(np.frombuffer(message, "<f4", rows * columns, at).reshape(rows, columns))
