"""Reads stored rows in a Triton kernel: words of 4 bytes to fp32 values.

A row's payload is read as 4-byte words, whatever its format; a word holds 1 to 16 elements.
`decode_word` widens the same element of every word, so that nothing moves between threads before
sums are put in the row's order by `interleave_parts`, once. What the rows' addresses are multiples
of is known before the launch (`PAYLOAD_ALIGNMENT`, bytes): 16 gives loads of 16 bytes a thread, 4
and 8 of a word or two, less reads halves or bytes. All addresses are 64-bit.
"""

import triton
import triton.language as tl


@triton.jit
def load_words(memory, units, payload_bytes, word, mask, PAYLOAD_ALIGNMENT: tl.constexpr):
    """Words of rows, int32 `[R, W]`.

    Args:
        memory: pointer to int32, int16 or uint8 units: the largest that the alignment allows.
        units: int64 `[R, 1]`, start of each row's payload, in units.
        word: int32 `[1, W]`, the words to read.
        mask: bool `[R, W]`; masked words are 0.
        PAYLOAD_ALIGNMENT: bytes that every payload's address is a multiple of.
    """
    if PAYLOAD_ALIGNMENT >= 4:
        words = tl.load(memory + (units + word), mask=mask, other=0)
    elif PAYLOAD_ALIGNMENT == 2:
        first = memory + (units + word * 2)
        low = tl.load(first, mask=mask, other=0).to(tl.int32) & 0xFFFF
        high = tl.load(first + 1, mask=mask & (word * 4 + 2 < payload_bytes), other=0)
        words = low | (high.to(tl.int32) << 16)
    else:
        first = memory + (units + word * 4)
        words = tl.load(first, mask=mask, other=0).to(tl.int32)
        for byte in tl.static_range(1, 4):
            inside = mask & (word * 4 + byte < payload_bytes)
            part = tl.load(first + byte, mask=inside, other=0).to(tl.int32)
            words = words | (part << (8 * byte))
    return words


@triton.jit
def load_headers(memory, units, mask, PAYLOAD_ALIGNMENT: tl.constexpr):
    """The 4 bytes before each payload, as int32 of the shape of `units`; 0 where masked."""
    if PAYLOAD_ALIGNMENT >= 4:
        heads = tl.load(memory + (units - 1), mask=mask, other=0)
    elif PAYLOAD_ALIGNMENT == 2:
        low = tl.load(memory + (units - 2), mask=mask, other=0).to(tl.int32) & 0xFFFF
        high = tl.load(memory + (units - 1), mask=mask, other=0).to(tl.int32)
        heads = low | (high << 16)
    else:
        heads = tl.load(memory + (units - 4), mask=mask, other=0).to(tl.int32)
        for byte in tl.static_range(1, 4):
            part = tl.load(memory + (units - 4 + byte), mask=mask, other=0).to(tl.int32)
            heads = heads | (part << (8 * byte))
    return heads


@triton.jit
def scales_and_biases(heads, FORMAT: tl.constexpr):
    """Scale and bias of each row, fp32, from its 4 header bytes."""
    if FORMAT == "fp8":
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
        FORMAT: a `RowFormat`'s value.
    """
    shifted = words >> (part * ELEMENT_BITS)
    if FORMAT == "fp32":
        values = words.to(tl.float32, bitcast=True)
    elif FORMAT == "bf16":
        high = words & -65536 if part == 1 else words << 16
        values = high.to(tl.float32, bitcast=True)
    elif FORMAT == "fp16":
        values = (shifted & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
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
def interleave(even, odd):
    """`[R, C]` and `[R, C]` to `[R, 2 C]`: even[0], odd[0], even[1]; all stays in its thread."""
    return tl.join(even, odd).reshape(even.shape[0], even.shape[1] * 2)


@triton.jit
def _interleave_4(first, second, third, fourth):
    return interleave(interleave(first, third), interleave(second, fourth))


@triton.jit
def _interleave_8(parts, first: tl.constexpr, step: tl.constexpr):
    even = _interleave_4(
        parts[first], parts[first + 2 * step], parts[first + 4 * step], parts[first + 6 * step]
    )
    odd = _interleave_4(
        parts[first + step],
        parts[first + 3 * step],
        parts[first + 5 * step],
        parts[first + 7 * step],
    )
    return interleave(even, odd)


@triton.jit
def interleave_parts(parts, COUNT: tl.constexpr):
    """Orders COUNT `[R, W]` parts of `decode_word` as in the row: `[R, W * COUNT]`.

    COUNT, elements of a word, is 1, 2, 4, 8 or 16.
    """
    if COUNT == 1:
        row = parts[0]
    elif COUNT == 2:
        row = interleave(parts[0], parts[1])
    elif COUNT == 4:
        row = _interleave_4(parts[0], parts[1], parts[2], parts[3])
    elif COUNT == 8:
        row = _interleave_8(parts, 0, 1)
    else:
        tl.static_assert(COUNT == 16)
        row = interleave(_interleave_8(parts, 0, 2), _interleave_8(parts, 1, 2))
    return row
