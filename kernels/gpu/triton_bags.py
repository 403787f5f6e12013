"""Pools a few bags in a Triton kernel: side by side, or one after the other.

A tile of ROWS rows of WORDS words is read at once. Sums are kept by an element's place in its word
until the bag ends, so no data moves between threads before. Ids outside the rows in this memory are
skipped: other ranks have them. What the rows' addresses are multiples of is known before the launch
(`PAYLOAD_ALIGNMENT`, bytes): 16 gives loads of 16 bytes a thread, 4 and 8 of a word or two. All
addresses are 64-bit.
"""

import triton
import triton.language as tl

from kernels.gpu.triton_rows import decode_word, interleave_parts, scales_and_biases

# Rows of the feature table, int64 [features, 8]; `triton_lookup` fills it.
POSITION, FIRST_WORD, STRIDE, FIRST_ROW, TABLE_ROWS, DIM, COLUMN, MEAN = (
    tl.constexpr(field) for field in range(8)
)
FIELDS = tl.constexpr(8)


@triton.jit
def _load_ids(values, positions, live, first_row, rows):
    """Loads live ids, int64 from the first row in this memory on, and a mask of those here."""
    ids = tl.load(values + positions, mask=live, other=0).to(tl.int64) - first_row
    # One comparison: a negative id is a huge one without its sign.
    inside = ids.to(tl.uint64, bitcast=True) < rows.to(tl.uint64, bitcast=True)
    wanted = live & inside
    return tl.where(wanted, ids, 0), wanted


@triton.jit
def pool_bags(
    memory,
    feature,
    values,
    weights,
    begins,
    ends,
    bags,
    there,
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
    SIDE_BY_SIDE: tl.constexpr,
):
    """Pools ROWS bags side by side, a row of each at once, or one bag, ROWS of its rows at once.

    `begins`, `ends` and `bags` are int32 `[ROWS]` or, for one bag, scalars. Of bags side by side,
    one that is not there is empty, and not `there`.
    """
    STEP: tl.constexpr = 1 if SIDE_BY_SIDE else ROWS
    PARTS: tl.constexpr = 32 // ELEMENT_BITS
    ELEMENTS: tl.constexpr = WORDS * PARTS
    HEADED: tl.constexpr = (FORMAT == "int8") | (FORMAT == "int4") | (FORMAT == "int2")
    SCALED: tl.constexpr = HEADED | (FORMAT == "fp8") | (FORMAT == "fp8_converted")
    access_words: tl.constexpr = PAYLOAD_ALIGNMENT // 4
    first_word = tl.multiple_of(tl.load(feature + FIRST_WORD), access_words)
    stride = tl.multiple_of(tl.load(feature + STRIDE), access_words)
    first_row = tl.load(feature + FIRST_ROW)
    table_rows = tl.load(feature + TABLE_ROWS)
    dim = tl.load(feature + DIM).to(tl.int32)
    payload_bytes = (dim * ELEMENT_BITS + 7) // 8
    # Rounded up to whole accesses, which `DeviceTables.payload_alignment` has made sure of.
    row_words = (payload_bytes + (4 * access_words - 1)) // (4 * access_words) * access_words
    word = chunk * WORDS + tl.arange(0, WORDS)[None, :]
    inside_row = word < tl.multiple_of(row_words, access_words)

    sums = ()
    for _part in tl.static_range(PARTS):
        sums = sums + (tl.zeros([ROWS, WORDS], dtype=tl.float32),)  # noqa: RUF005 - the compiler knows no stars
    bias_sums = tl.zeros([ROWS, WORDS], dtype=tl.float32)
    if SIDE_BY_SIDE:
        positions = begins
        steps = tl.max(ends - begins, axis=0)
    else:
        positions = begins + tl.arange(0, ROWS)
        steps = (ends - begins + (ROWS - 1)) // ROWS
    ids, wanted = _load_ids(values, positions, positions < ends, first_row, table_rows)
    for _step in range(steps):
        starts = first_word + ids * stride
        inside = wanted[:, None] & inside_row
        words = tl.load(memory + (starts[:, None] + word), mask=inside, other=0)
        if SCALED:
            heads = tl.load(memory + (starts - 1), mask=wanted, other=0)
        if WEIGHTED:
            weight = tl.load(weights + positions, mask=wanted, other=0.0)
        # The next ids are on their way while these rows are widened.
        positions += STEP
        ids, wanted = _load_ids(values, positions, positions < ends, first_row, table_rows)
        if SCALED:
            scales, biases = scales_and_biases(heads, FORMAT)
            if WEIGHTED:
                scales *= weight
                biases *= weight
        more = ()
        for part in tl.static_range(PARTS):
            level = decode_word(words, part, FORMAT, ELEMENT_BITS)
            if HEADED and part == 0:
                # The product is 0: it keeps the biases in the threads that hold the words.
                bias_sums += level * 0.0 + biases[:, None]
            if SCALED:
                level *= scales[:, None]
            elif WEIGHTED:
                level *= weight[:, None]
            more = more + (sums[part] + level,)  # noqa: RUF005 - the compiler knows no stars
        sums = more
    if HEADED:
        more = ()
        for part in tl.static_range(PARTS):
            more = more + (sums[part] + bias_sums,)  # noqa: RUF005 - the compiler knows no stars
        sums = more
    pooled = interleave_parts(sums, PARTS)
    if SIDE_BY_SIDE == 0:
        pooled = tl.sum(pooled, axis=0)[None, :]

    if tl.load(feature + MEAN) != 0:
        # A product with the rounded reciprocal, as in FBGEMM's MEAN pooling.
        factors = tl.div_rn(1.0, tl.maximum(ends - begins, 1).to(tl.float32))
        pooled *= factors[:, None] if SIDE_BY_SIDE else factors
    column = tl.multiple_of(tl.load(feature + COLUMN), OUT_ALIGNMENT)
    stride_out = tl.multiple_of(out_stride.to(tl.int64), OUT_ALIGNMENT)
    element = chunk * ELEMENTS + tl.arange(0, ELEMENTS)[None, :]
    lines = bags.to(tl.int64) * stride_out + column
    inside_out = element < tl.multiple_of(dim, OUT_ALIGNMENT)
    if SIDE_BY_SIDE:
        mask = there[:, None] & inside_out
        tl.store(out + (lines[:, None] + element), pooled.to(out.dtype.element_ty), mask=mask)
    else:
        tl.store(out + (lines + element), pooled.to(out.dtype.element_ty), mask=inside_out)
