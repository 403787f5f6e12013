"""Ids of a lookup in a Triton kernel. Those outside the rows in this memory are skipped."""

import triton
import triton.language as tl


@triton.jit
def load_ids(values, positions, live, first_row, rows):
    """Loads ids, relative to the first row in this memory.

    Args:
        values: pointer to int32 or int64 ids.
        positions: int32 or int64 `[R]`.
        live: bool `[R]`, which positions to read.
        first_row: int64, or `[R]`, first row of the ids' tables in this memory.
        rows: as `first_row`, number of rows in this memory.

    Returns:
        int64 ids, and a mask of those to look up.
    """
    ids = tl.load(values + positions, mask=live, other=0).to(tl.int64) - first_row
    # One comparison: a negative id is a huge one without its sign.
    inside = ids.to(tl.uint64, bitcast=True) < rows.to(tl.uint64, bitcast=True)
    wanted = live & inside
    return tl.where(wanted, ids, 0), wanted


@triton.jit
def any_outside(values, begin, end, first_row, rows, CHECKED: tl.constexpr):
    """True if any id from `begin` to `end` (int32, exclusive) of one feature is outside its rows.

    Args:
        values: pointer to int32 or int64 ids.
        first_row: int64, first row of the table in this memory.
        rows: int64, number of rows in this memory.
        CHECKED: ids that are checked at once.
    """
    skipped = tl.zeros([CHECKED], dtype=tl.int32)
    for first in range(begin, end, CHECKED):
        positions = first + tl.arange(0, CHECKED)
        live = positions < end
        _, wanted = load_ids(values, positions, live, first_row, rows)
        skipped |= (live & (wanted == 0)).to(tl.int32)
    return tl.max(skipped, axis=0) > 0
