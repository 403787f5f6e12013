"""Decodes stored rows in a Triton kernel: words of 4 bytes to fp32 values.

A row's payload is read as 4-byte words, whatever its format; a word holds 1 to 16 elements.
`decode_word` widens the same element of every word, so that nothing moves between threads before
sums are put in the row's order by `interleave_parts`, once.
"""

import triton
import triton.language as tl


@triton.jit
def scales_and_biases(heads, FORMAT: tl.constexpr):
    """Scale and bias of each row, fp32, from its 4 header bytes."""
    if (FORMAT == "fp8") | (FORMAT == "fp8_converted"):
        scales = heads.to(tl.float32, bitcast=True)
        biases = tl.zeros_like(scales)
    else:
        scales = (heads & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        biases = (heads >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return scales, biases


@triton.jit
def decode_word(words, part: tl.constexpr, FORMAT: tl.constexpr, ELEMENT_BITS: tl.constexpr):
    """One element of every int32 `[R, W]` word as fp32, without scale and bias.

    Args:
        part: index of the element in its word, from the lowest bits.
        FORMAT: of `kernel_format`.
    """
    shifted = words >> (part * ELEMENT_BITS)
    if FORMAT == "fp32":
        values = words.to(tl.float32, bitcast=True)
    elif FORMAT == "bf16":
        high = words & -65536 if part == 1 else words << 16
        values = high.to(tl.float32, bitcast=True)
    elif FORMAT == "fp16":
        values = (shifted & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif FORMAT == "fp8_converted":
        half: tl.constexpr = "low" if part < 2 else "high"
        # Two elements as fp16, which holds every fp8.
        pair = tl.inline_asm_elementwise(
            "{.reg .b16 low, high; mov.b32 {low, high}, $1; cvt.rn.f16x2.e4m3x2 $0, " + half + ";}",
            "=r,r",
            [words],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
        element = pair >> (part % 2 * 16)
        values = (element & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif FORMAT == "fp8":
        # Exponent and mantissa in fp32's places; 2**120 makes up for the biases, 127 and 7.
        bits = ((shifted & 0x80) << 24) | ((shifted & 0x7F) << 20)
        finite = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
        values = tl.where((shifted & 0x7F) == 0x7F, float("nan"), finite)
    else:
        tl.static_assert((FORMAT == "int8") | (FORMAT == "int4") | (FORMAT == "int2"))
        level = shifted & ((1 << ELEMENT_BITS) - 1)
        if part % 2 == 1:
            # 2**23 + level, exactly: few units of an SM convert integers, so half are not.
            values = (level | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
        else:
            values = level.to(tl.float32)
    return values


@triton.jit
def _interleave(even, odd):
    """`[R, C]` and `[R, C]` to `[R, 2 C]`: even[0], odd[0], even[1]; all stays in its thread."""
    return tl.join(even, odd).reshape(even.shape[0], even.shape[1] * 2)


@triton.jit
def interleave_parts(parts, COUNT: tl.constexpr):
    """Orders COUNT `[R, W]` parts of `decode_word` as in the row: `[R, W * COUNT]`.

    COUNT, elements of a word, is 1, 2, 4, 8 or 16.
    """
    for level in tl.static_range(4):
        # Those that lie half as far apart as there are parts alternate in the row.
        joined = ()
        for part in tl.static_range(COUNT >> (level + 1)):
            pair = _interleave(parts[part], parts[part + (COUNT >> (level + 1))])
            joined = joined + (pair,)  # noqa: RUF005 - the compiler knows no stars
        if COUNT >> (level + 1) > 0:
            parts = joined
    return parts[0]
