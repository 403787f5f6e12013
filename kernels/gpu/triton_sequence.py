"""The Triton kernel that looks up rows without pooling them: the ids of sequence features.

    for each id i of any feature f:
        out[i, columns below dim of f] = scale * levels of row[i] + bias; the columns beyond are 0

Ids that are refused or ignored give a row of zeros, so that every id keeps its place.

No model uses it yet: it is kept for sequence features, which reach the tower unpooled.
"""

import triton
import triton.language as tl

from kernels.gpu.triton_bags import DIM, FIELDS, FIRST_ROW, POLICY, STRIDE, TABLE_ROWS, UNITS
from kernels.gpu.triton_ids import ELSEWHERE, first_refused, load_ids, report
from kernels.gpu.triton_rows import (
    decode_word,
    interleave_parts,
    load_headers,
    load_words,
    scales_and_biases,
)

_RUN_TIME = ("count", "batch", "feature_count", "out_width", "out_stride")
_POINTERS = ("features", "values", "offsets", "outside")


@triton.jit(do_not_specialize=_RUN_TIME, do_not_specialize_on_alignment=_POINTERS)
def sequence_kernel(
    memory,
    features,
    values,
    offsets,
    out,
    outside,
    count,
    batch,
    feature_count,
    out_width,
    out_stride,
    FORMAT: tl.constexpr,
    ELEMENT_BITS: tl.constexpr,
    PAYLOAD_ALIGNMENT: tl.constexpr,
    OUT_ALIGNMENT: tl.constexpr,
    WRAPS: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Looks up rows; the arguments are those of `pooled_kernel`, apart from these.

    Args:
        features: int64 `[F, 9]`, in the order of their bags.
        values: int32 or int64 `[N]`, ids.
        offsets: int32 or int64 `[F * B + 1]`.
        out: fp32 or bf16 `[N, out_width]`.
        outside: int64 [2].
        out_width: columns of `out`.
        out_stride: elements from one id's row of `out` to the next.
        FORMAT: a `RowFormat`'s value.
        PAYLOAD_ALIGNMENT: bytes.
        OUT_ALIGNMENT: elements that `out`, its stride and its width are multiples of.
        WRAPS: whether any feature wraps ids.
        ROWS: ids of a program.
        WORDS: words of a row that a program reads.
    """
    ELEMENTS: tl.constexpr = WORDS * (32 // ELEMENT_BITS)
    positions = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = positions < count
    owner = tl.zeros([ROWS], dtype=tl.int32)
    for feature in range(1, feature_count):
        begin = tl.load(offsets + feature * batch).to(tl.int64)
        owner += (positions >= begin).to(tl.int32)
    line = features + owner * FIELDS
    dim = tl.load(line + DIM)
    policy = tl.load(line + POLICY)
    rows = tl.load(line + TABLE_ROWS)
    first_row = tl.load(line + FIRST_ROW)
    ids, wanted, strange = load_ids(values, positions, live, first_row, rows, policy, WRAPS)
    strange = strange & (policy != ELSEWHERE)
    first_unit = tl.load(line + UNITS)
    stride = tl.load(line + STRIDE)
    if PAYLOAD_ALIGNMENT >= 4:
        first_unit = tl.multiple_of(first_unit, PAYLOAD_ALIGNMENT // 4)
        stride = tl.multiple_of(stride, PAYLOAD_ALIGNMENT // 4)
    units = first_unit + ids * stride
    payload_bytes = ((dim * ELEMENT_BITS + 7) // 8)[:, None]
    chunk = tl.program_id(1)
    word = chunk * WORDS + tl.arange(0, WORDS)[None, :]
    access_words: tl.constexpr = max(1, PAYLOAD_ALIGNMENT // 4)
    row_words = (payload_bytes + (4 * access_words - 1)) // (4 * access_words) * access_words
    inside_row = word < tl.multiple_of(row_words, [1, access_words])
    mask = wanted[:, None] & inside_row
    words = load_words(memory, units[:, None], payload_bytes, word, mask, PAYLOAD_ALIGNMENT)
    PARTS: tl.constexpr = 32 // ELEMENT_BITS
    SCALED: tl.constexpr = ELEMENT_BITS <= 8
    if SCALED:
        heads = load_headers(memory, units, wanted, PAYLOAD_ALIGNMENT)
        scales, biases = scales_and_biases(heads, FORMAT)
    parts = ()
    for part in tl.static_range(PARTS):
        level = decode_word(words, part, FORMAT, ELEMENT_BITS)
        if SCALED:
            level = scales[:, None] * level + biases[:, None]
        parts = parts + (level,)  # noqa: RUF005 - the compiler knows no stars
    result = interleave_parts(parts, PARTS)
    if chunk == 0:
        refused = first_refused(positions, strange, policy)
        report(outside, strange.to(tl.int64), refused)
    element = chunk * ELEMENTS + tl.arange(0, ELEMENTS)[None, :]
    # Beyond its dim a row's result is its bias, not 0.
    result = tl.where(element < dim[:, None], result, 0.0)
    stride_out = tl.multiple_of(out_stride.to(tl.int64), OUT_ALIGNMENT)
    width = tl.multiple_of(out_width.to(tl.int64), OUT_ALIGNMENT)
    tl.store(
        out + (positions[:, None] * stride_out + element),
        result.to(out.dtype.element_ty),
        mask=live[:, None] & (element < width),
    )
