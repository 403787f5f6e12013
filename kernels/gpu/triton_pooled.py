"""The Triton kernel that pools the bags of all tables of a device and format, in one launch.

    each program: one feature, a block of bags, a chunk of columns; for each of its bags b
        sum = 0
        for each id i of b, several at once:
            sum += weight[i] * (scale[i] * levels of row[i] + bias[i])       fp32
        out[b, columns] = sum, or sum / max(1, ids of b) for a mean

A tile of rows is read at once, so that many loads are on their way. It holds one row each of as
many bags, or, where fewer steps come of it because bags differ in length, as many rows of one bag
after the other. Features whose bags are long have programs of one bag, and those run first. Tiles
of two widths serve narrow and wide rows; which program does what is in `triton_tiles`.
"""

import triton
import triton.language as tl

from kernels.gpu.triton_bags import DIM, FIELDS, POSITION, pool_bags


@triton.jit
def _pool_block(
    memory,
    feature,
    values,
    offsets,
    weights,
    first_bag,
    block,
    batch,
    out,
    out_stride,
    chunk,
    FORMAT: tl.constexpr,
    ELEMENT_BITS: tl.constexpr,
    PAYLOAD_ALIGNMENT: tl.constexpr,
    OUT_ALIGNMENT: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Pools `block` (1 or ROWS) bags of a feature from `first_bag` on."""
    # The feature's bags are offsets[position * batch] and on.
    first_offset = tl.load(feature + POSITION) * batch + first_bag
    lane = tl.arange(0, ROWS)
    there = (lane < block) & (first_bag + lane < batch)
    begins = tl.load(offsets + first_offset + lane, mask=there, other=0).to(tl.int32)
    ends = tl.load(offsets + first_offset + lane + 1, mask=there, other=0).to(tl.int32)
    lengths = ends - begins
    # Steps with a row of each bag at once, and with all rows of a bag at once, bag after bag.
    side_by_side = tl.max(lengths, axis=0)
    one_by_one = tl.sum((lengths + ROWS - 1) // ROWS, axis=0)
    last_bag = tl.minimum(first_bag + block, batch)
    if (block > 1) & (side_by_side <= one_by_one + 1):
        pool_bags(
            memory, feature, values, weights, begins, ends, first_bag + lane, there,
            out, out_stride, chunk,
            FORMAT, ELEMENT_BITS, PAYLOAD_ALIGNMENT, OUT_ALIGNMENT, WEIGHTED,
            ROWS, WORDS, True,
        )  # fmt: skip
    else:
        for index in range(last_bag - first_bag):
            begin = tl.load(offsets + first_offset + index).to(tl.int32)
            end = tl.load(offsets + first_offset + index + 1).to(tl.int32)
            pool_bags(
                memory, feature, values, weights, begin, end, first_bag + index, True,
                out, out_stride, chunk,
                FORMAT, ELEMENT_BITS, PAYLOAD_ALIGNMENT, OUT_ALIGNMENT, WEIGHTED,
                ROWS, WORDS, False,
            )  # fmt: skip


# Nothing that differs from batch to batch may choose another compilation. The alignment of `memory`
# and `out`, which never differs, lets accesses be wide.
_RUN_TIME = ("batch", "out_stride", "long_wide", "long_narrow", "short_wide", "wide_chunks")
_POINTERS = ("features", "values", "offsets", "weights")


@triton.jit(do_not_specialize=_RUN_TIME, do_not_specialize_on_alignment=_POINTERS)
def pooled_kernel(
    memory,
    features,
    values,
    offsets,
    weights,
    out,
    batch,
    out_stride,
    long_wide,
    long_narrow,
    short_wide,
    wide_chunks,
    FORMAT: tl.constexpr,
    ELEMENT_BITS: tl.constexpr,
    PAYLOAD_ALIGNMENT: tl.constexpr,
    OUT_ALIGNMENT: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WIDE_ROWS: tl.constexpr,
    WIDE_WORDS: tl.constexpr,
    NARROW_ROWS: tl.constexpr,
    NARROW_WORDS: tl.constexpr,
):
    """Pools bags.

    Args:
        memory: the tables, as int32 words.
        features: int64 `[F, 8]`, `triton_bags`'s fields; features with long bags and wide rows
            first, then long and narrow, short and wide, short and narrow.
        values: int32 or int64 `[N]`, ids.
        offsets: int32 or int64 `[F * B + 1]`, start of each bag in `values`.
        weights: fp32 `[N]`; not read unless WEIGHTED.
        out: fp32 or bf16, written.
        out_stride: elements from one sample's line of `out` to the next.
        long_wide, long_narrow, short_wide: features of the first three kinds.
        wide_chunks: programs that share a wide feature's columns.
        FORMAT: of `kernel_format`.
        OUT_ALIGNMENT: elements that `out`, its stride and all dims are multiples of.
        NARROW_WORDS: words of a row in a narrow tile; 0: there are no narrow features.
    """
    program = tl.program_id(0)
    wide_blocks = (batch + WIDE_ROWS - 1) // WIDE_ROWS
    end_long_wide = long_wide * batch * wide_chunks
    end_long_narrow = end_long_wide + long_narrow * batch
    end_short_wide = end_long_narrow + short_wide * wide_blocks * wide_chunks
    wide = (program < end_long_wide) | ((program >= end_long_narrow) & (program < end_short_wide))
    if NARROW_WORDS == 0:
        wide = True
    if wide:
        is_long = program < end_long_wide
        block = tl.where(is_long, 1, WIDE_ROWS)
        blocks = tl.where(is_long, batch, wide_blocks)
        index = tl.where(is_long, program, program - end_long_narrow)
        chunk = index % wide_chunks
        index = index // wide_chunks
        line = index // blocks + tl.where(is_long, 0, long_wide + long_narrow)
        feature = features + line * FIELDS
        first_word = chunk * WIDE_WORDS
        if first_word * 32 < tl.load(feature + DIM) * ELEMENT_BITS:
            _pool_block(
                memory, feature, values, offsets, weights,
                index % blocks * block, block, batch, out, out_stride, chunk,
                FORMAT, ELEMENT_BITS, PAYLOAD_ALIGNMENT, OUT_ALIGNMENT, WEIGHTED,
                WIDE_ROWS, WIDE_WORDS,
            )  # fmt: skip
    elif NARROW_WORDS > 0:
        narrow_blocks = (batch + NARROW_ROWS - 1) // NARROW_ROWS
        is_long = program < end_long_narrow
        block = tl.where(is_long, 1, NARROW_ROWS)
        blocks = tl.where(is_long, batch, narrow_blocks)
        index = program - tl.where(is_long, end_long_wide, end_short_wide)
        line = index // blocks + long_wide + tl.where(is_long, 0, long_narrow + short_wide)
        _pool_block(
            memory, features + line * FIELDS, values, offsets, weights,
            index % blocks * block, block, batch, out, out_stride, 0,
            FORMAT, ELEMENT_BITS, PAYLOAD_ALIGNMENT, OUT_ALIGNMENT, WEIGHTED,
            NARROW_ROWS, NARROW_WORDS,
        )  # fmt: skip
