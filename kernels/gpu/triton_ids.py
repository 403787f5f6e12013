"""Ids of a lookup in a Triton kernel, and the treatment of those outside their tables.

A feature's policy is an `OutOfRange`. Refused and ignored ids are not looked up. All but those of
other shards are counted: `outside` is int64 [2], the count and the first refused one's position.
"""

import triton
import triton.language as tl

from kernels.gpu.device_tables import OutOfRange

REFUSE = tl.constexpr(OutOfRange.REFUSE.value)
ELSEWHERE = tl.constexpr(OutOfRange.ELSEWHERE.value)
WRAP = tl.constexpr(OutOfRange.WRAP.value)
NOWHERE = tl.constexpr(2**63 - 1)  # the position when nothing is refused


@triton.jit
def load_ids(values, positions, live, first_row, rows, policy, WRAPS: tl.constexpr):
    """Loads ids, mapped into their tables and relative to the first row in this memory.

    Args:
        values: pointer to int32 or int64 ids.
        positions: int32 or int64 `[R]`.
        live: bool `[R]`, which positions to read.
        first_row: int64, or `[R]`, first row of the ids' tables in this memory.
        rows: as `first_row`, number of rows in this memory.
        policy: as `first_row`.
        WRAPS: whether any feature's policy is to wrap.

    Returns:
        int64 ids, a mask of those to look up, and a mask of those outside their tables.
    """
    ids = tl.load(values + positions, mask=live, other=0).to(tl.int64) - first_row
    # One comparison: a negative id is a huge one without its sign.
    inside = ids.to(tl.uint64, bitcast=True) < rows.to(tl.uint64, bitcast=True)
    strange = live & (inside == 0)
    wanted = live & inside
    if WRAPS:  # noqa: SIM102 - decided by the compiler, unlike the one below
        # A 64-bit remainder is some hundred instructions: only where one is needed.
        if tl.max(strange.to(tl.int32), axis=0) > 0:
            # Truncated towards zero; never negative after the second line.
            wrapped = ids % rows
            wrapped = tl.where(wrapped < 0, wrapped + rows, wrapped)
            ids = tl.where(policy == WRAP, wrapped, ids)
            wanted = wanted | (strange & (policy == WRAP))
    return tl.where(wanted, ids, 0), wanted, strange


@triton.jit
def first_refused(positions, strange, policy):
    """Positions of refused ids, else a position beyond all: int64 `[R]`."""
    return tl.where(strange & (policy == REFUSE), positions, NOWHERE)


@triton.jit
def find_strange(
    values, begin, end, first_row, rows, policy, outside, reports, CHECKED: tl.constexpr
):
    """Checks all ids from `begin` to `end` of one feature; true if any is outside its table.

    Args:
        values: pointer to int32 or int64 ids.
        begin: int32.
        end: int32, exclusive.
        first_row: int64, first row of the table in this memory.
        rows: int64, number of rows in this memory.
        outside: pointer to int64 [2].
        reports: add the findings to `outside`.
        CHECKED: ids that are checked at once.
    """
    any_strange = tl.zeros([CHECKED], dtype=tl.int32)
    for first in range(begin, end, CHECKED):
        positions = first + tl.arange(0, CHECKED)
        live = positions < end
        _, _, strange = load_ids(values, positions, live, first_row, rows, policy, False)
        any_strange |= strange.to(tl.int32)
    found = tl.max(any_strange, axis=0) > 0
    if found & reports & (policy != ELSEWHERE):
        count = tl.zeros([CHECKED], dtype=tl.int64)
        refused = tl.full([CHECKED], NOWHERE, dtype=tl.int64)
        for first in range(begin, end, CHECKED):
            positions = first + tl.arange(0, CHECKED)
            live = positions < end
            _, _, strange = load_ids(values, positions, live, first_row, rows, policy, False)
            count += strange.to(tl.int64)
            refused = tl.minimum(refused, first_refused(positions.to(tl.int64), strange, policy))
        report(outside, count, refused)
    return found


@triton.jit
def report(outside, count, first):
    """Adds a program's findings to `outside`.

    Args:
        outside: pointer to int64 [2].
        count: int64 `[R]`, numbers of ids outside their tables.
        first: int64 `[R]`, of `first_refused`.
    """
    total = tl.sum(count, axis=0)
    if total > 0:
        tl.atomic_add(outside, total)
        tl.atomic_min(outside + 1, tl.min(first, axis=0))
