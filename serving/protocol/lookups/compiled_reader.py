"""Answers of lookups, read by compiled code: sums as they came, and rows, which it pools.

Its source is `serving/native/lookups/read_answer.cpp`, which has the pseudocode. Where it was not
built, rows are never asked for, and NumPy reads the sums.
"""

import ctypes
import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.backends.native import KernelForCompiledCode, kernel_for_compiled_code
from kernels.native_library import address_of, keeping_gil, load_library
from serving.protocol.lookups.compiled_writer import Arrays, arrays_of
from serving.protocol.lookups.sum_messages import read_sums
from sharded_infer.errors import InternalError
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.tensors import tensor_of

_NUMBER, _ADDRESS = ctypes.c_int64, ctypes.c_void_p
# Ids, or bytes of an answer, above which reading takes a tenth of a millisecond: other threads may
# run meanwhile.
_MANY = 1 << 15
# `Refusal` of serving/native/lookups/read_answer.h.
_REASONS = {
    1: "the answer is not a LookupResponse: byte {got}",
    2: "the answer has sums of {got} groups, expected {expected}",
    3: "the answer has sums of {got} bytes, expected {expected} for group {group}",
    4: "the answer has {got} bytes of numbers of rows, expected {expected}",
    5: "the answer has {got} rows for entry {entry} of group {group}, expected {expected}",
    6: "the answer has {got} bytes of rows for entry {entry} of group {group} and later ones, "
    "expected {expected}",
    7: "the answer has {got} bytes of rows, expected {expected}",
}


class _AskedGroup(ctypes.Structure):
    """`AskedGroup` of serving/native/lookups/read_answer.h."""

    _fields_ = (
        ("pieces", _ADDRESS),
        ("lengths", _ADDRESS),
        ("ids", _ADDRESS),
        ("weights", _ADDRESS),
        ("entries", _NUMBER),
        ("bags", _NUMBER),
        ("id_count", _NUMBER),
        ("columns", _NUMBER),
        ("sum_bytes", _NUMBER),
        ("pooled", _ADDRESS),
        ("sums", _ADDRESS),
    )


class _Refused(ctypes.Structure):
    """`Refused` of serving/native/lookups/read_answer.h."""

    _fields_ = (
        ("reason", _NUMBER),
        ("group", _NUMBER),
        ("entry", _NUMBER),
        ("expected", _NUMBER),
        ("got", _NUMBER),
    )


def _load() -> tuple[KernelForCompiledCode, ctypes.CDLL, ctypes.CDLL] | None:
    """The kernel, and the library called without the GIL and with it; None where it cannot read."""
    library = load_library("serving") if sys.byteorder == "little" else None
    kernel = kernel_for_compiled_code()
    if library is None or kernel is None:
        return None
    both = library, keeping_gil(library)
    for one in both:
        one.sharded_infer_answer_read.restype = ctypes.c_int32
        one.sharded_infer_answer_read.argtypes = (
            *(_ADDRESS, _NUMBER, ctypes.POINTER(_AskedGroup), _NUMBER),
            *(_ADDRESS, ctypes.c_int32, ctypes.POINTER(_Refused)),
        )
    return kernel, *both


_LIBRARIES = _load()


def reads_rows(groups: Sequence[PieceBags]) -> bool:
    """Whether the host may answer with stored rows."""
    return _LIBRARIES is not None and all(group.stored is not None for group in groups)


def read_answer(message: memoryview, groups: Sequence[PieceBags]) -> list[Tensor]:
    """Reads a LookupResponse, and pools the rows that it has.

    Args:
        groups: as they were asked.

    Returns:
        For each group fp32 `[R, columns]`; some are views of the message.

    Raises:
        InternalError: the bytes are not such a message, or not one for these groups.
    """
    if _LIBRARIES is None or not reads_rows(groups):
        bags = [group.chosen.bag_count for group in groups]
        sums = read_sums(message, bags, [group.sum_bytes for group in groups])
        return [tensor_of(one) for one in sums]
    kernel, *libraries = _LIBRARIES
    listed = (_AskedGroup * len(groups))()
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
        to.sum_bytes = group.sum_bytes
        # Memory that is not written costs nothing.
        out = torch.empty(bag_count, group.stored.columns)
        to.pooled = out.data_ptr()
        pooled.append(out)
        ids += count
    content = np.frombuffer(message, np.uint8)
    base, size = content.ctypes.data, len(content)
    refused = _Refused()
    run = libraries[max(ids, size) < _MANY].sharded_infer_answer_read
    if run(base, size, listed, len(groups), kernel.address, kernel.instruction_set, refused):
        words = {name: getattr(refused, name) for name, _ in _Refused._fields_[1:]}
        raise InternalError(_REASONS[refused.reason].format(**words))
    return [
        out if read.sums is None else _view(message, read.sums - base, out)
        for read, out in zip(listed, pooled, strict=True)
    ]


def _view(message: memoryview, at: int, like: Tensor) -> Tensor:
    rows, columns = like.shape
    return tensor_of(np.frombuffer(message, "<f4", rows * columns, at).reshape(rows, columns))
