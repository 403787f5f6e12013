"""FBGEMM's bytes, torch's bf16, bounded errors, and rows that no format holds."""

import fbgemm_gpu  # noqa: F401 - registers the operator
import pytest
import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from quant.encoder import UnrepresentableRowError, encode_rows
from tests.reference.row_encoding import encode

DIMS = (1, 2, 3, 4, 7, 8, 16, 33, 64, 128, 257)
NAN, INF = float("nan"), float("inf")


def hard_rows(dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(dim)
    normal = torch.randn(40, dim, generator=generator)
    sizes = torch.logspace(-45, 4, 400)[:, None]
    ramp = torch.arange(dim, dtype=torch.float32)
    signs = torch.where(ramp % 2 == 0, 1.0, -1.0)
    special = torch.stack(
        [
            torch.zeros(dim),
            -torch.zeros(dim),
            torch.zeros(dim) * signs,
            torch.full((dim,), 2.7),
            torch.full((dim,), -65504.0),
            torch.full((dim,), 1e-45),
            65504.0 * signs,
            60000.0 * signs,
            ramp / 2,
            # Steps of exactly one half: every other element is a tie.
            torch.cat([torch.tensor([127.5]), ramp[1:] / 4]),
            torch.cat([torch.tensor([1e4]), normal[0, 1:]]),
            torch.cat([torch.tensor([-1e-4]), ramp[1:] * 0]),
            torch.full((dim,), 0.1),  # a bias that is rounded above its row
            torch.linspace(0, 255, dim),
            torch.linspace(-7.5, 7.5, dim),
            torch.full((dim,), 1e-40),
        ]
    )
    sized = torch.randn(len(sizes), dim, generator=generator) * sizes
    return torch.cat([normal, normal.round(), special, sized])


def fbgemm_int8(rows: Tensor) -> Tensor:
    """FBGEMM's n-bit operator at 8 bits, as TorchRec uses it, scale and bias moved to the head."""
    fused = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 8)
    dim = rows.shape[1]
    return torch.cat([fused[:, dim:], fused[:, :dim]], dim=1)


# The operator takes no odd dims.
@pytest.mark.parametrize("dim", [dim for dim in DIMS if dim % 2 == 0])
def test_int8_rows_are_fbgemms_to_the_bit(dim: int) -> None:
    rows = hard_rows(dim)
    assert torch.equal(encode(RowFormat.INT8, rows), fbgemm_int8(rows))


def test_int8_levels_halfway_between_two_are_fbgemms() -> None:
    # The last bit of the inverse step decides each of them.
    span = torch.rand(300, 1, generator=torch.Generator().manual_seed(0)) * 4 + 0.1
    halfway = (torch.arange(254) + 0.5) / 255
    rows = torch.cat([torch.zeros_like(span), span, span * halfway], dim=1)
    assert torch.equal(encode(RowFormat.INT8, rows), fbgemm_int8(rows))


@pytest.mark.parametrize("dim", [dim for dim in DIMS if dim % 4 == 0])
def test_int8_errors_are_no_larger_than_those_of_fbgemms_other_int8(dim: int) -> None:
    rows = torch.randn(2000, dim, generator=torch.Generator().manual_seed(0))
    fused = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(rows)
    scale_bias = fused[:, dim:].clone().view(torch.float32).half()
    other = torch.cat([scale_bias.view(torch.uint8), fused[:, :dim]], dim=1)
    error = decode(RowFormat.INT8, encode(RowFormat.INT8, rows), dim) - rows
    others = decode(RowFormat.INT8, other, dim) - rows
    assert float(error.square().sum()) <= float(others.square().sum())


@pytest.mark.parametrize("dim", DIMS)
def test_bf16_rows_are_torchs_cast(dim: int) -> None:
    rows = hard_rows(dim)
    stored = encode(RowFormat.BF16, rows)
    assert stored.shape == (len(rows), 2 * dim)
    assert torch.equal(stored.view(torch.bfloat16), rows.to(torch.bfloat16))


@pytest.mark.parametrize("row_format", RowFormat)
def test_no_rows_are_no_rows(row_format: RowFormat) -> None:
    assert encode(row_format, torch.empty(0, 6)).shape == (0, row_format.row_bytes(6))


@pytest.mark.parametrize("row_format", RowFormat)
def test_rows_may_lie_apart_and_stay_as_they_were(row_format: RowFormat) -> None:
    whole = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    before = whole.clone()
    stored = encode(row_format, whole[:, ::2])
    assert torch.equal(stored, encode(row_format, whole[:, ::2].contiguous()))
    assert torch.equal(whole, before)


@pytest.mark.parametrize(
    ("row_format", "row", "words"),
    [
        (RowFormat.INT8, [NAN, NAN, NAN], "holds NaN"),
        (RowFormat.INT8, [-INF, 0.0, 0.0], "holds NaN, infinity"),
        (RowFormat.INT8, [INF, INF, INF], "holds NaN, infinity"),
        (RowFormat.INT8, [3e38, 0.0, -3e38], "range beyond fp32"),
        (RowFormat.INT8, [-70000.0, 0.0, 0.0], "its scale or bias is beyond fp16's range"),
        (RowFormat.INT8, [70000.0, 70000.0, 70000.0], "its scale or bias is beyond fp16's range"),
        (RowFormat.INT8, [0.0, 0.0, 1.7e7], "its scale or bias is beyond fp16's range"),
        (RowFormat.INT4, [1.0, -70000.0, 1.0], "range"),
        (RowFormat.FP16, [1.0, -70000.0, 1.0], "range"),
        (RowFormat.BF16, [0.0, -INF, 1.0], "holds NaN or infinity"),
        (RowFormat.BF16, [0.0, 3.4028e38, 1.0], "holds a value beyond bf16's range"),
        *((f, [1.0, number, 1.0], "holds") for f in RowFormat for number in (NAN, INF)),
    ],
)
def test_rows_beyond_formats_are_named(row_format: RowFormat, row: list[float], words: str) -> None:
    rows = torch.zeros(6, 3)
    rows[4] = rows[5] = torch.tensor(row)
    with pytest.raises(UnrepresentableRowError, match=f"row 4: .*{words}") as caught:
        encode(row_format, rows)
    assert caught.value.row == 4


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize(
    "rows", [torch.zeros(2, 3, dtype=torch.float64), torch.zeros(6), torch.zeros(1, 2, 3)]
)
def test_other_dtypes_and_shapes_are_refused(row_format: RowFormat, rows: Tensor) -> None:
    with pytest.raises(InputError, match=r"rows: expected float32 \[n, dim\].*, got torch.float"):
        encode_rows(row_format, rows)


PACKED = ((RowFormat.INT4, 4), (RowFormat.INT2, 2))


def few_bits_rows(dim: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(dim)
    rows = torch.randn(400, dim, generator=generator) * torch.rand(400, 1, generator=generator)
    rows[0], rows[1], rows[2], rows[3] = 0.0, 3.25, 1e-40, -60000.0
    rows[4] *= 1e-6
    rows[5, 0] = 60000.0
    return rows


@pytest.mark.parametrize(("row_format", "bits"), PACKED)
@pytest.mark.parametrize("dim", [8, 64, 128, 1024])
def test_packed_rows_without_clip_are_fbgemms(row_format: RowFormat, bits: int, dim: int) -> None:
    rows = few_bits_rows(dim)
    fused = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, bit_rate=bits)
    # The operator has scale and bias at the tail, inference tables at the head.
    expected = torch.cat([fused[:, -4:], fused[:, :-4]], dim=1)
    assert torch.equal(encode(row_format, rows, clip=False), expected)


@pytest.mark.parametrize(("row_format", "share"), [(RowFormat.INT4, 0.9), (RowFormat.INT2, 0.7)])
@pytest.mark.parametrize("dim", [7, 64, 128])
def test_clipping_lowers_errors_and_raises_none(
    row_format: RowFormat, share: float, dim: int
) -> None:
    rows = few_bits_rows(dim)[4:]
    errors = [
        (decode(row_format, encode(row_format, rows, clip=clip), dim) - rows).square().sum(1)
        for clip in (False, True)
    ]
    plain, clipped = errors
    # Sums of squares round by themselves.
    assert bool((clipped <= plain * (1 + 1e-5)).all())
    assert clipped[2:].sum() < share * plain[2:].sum()


@pytest.mark.parametrize("dim", [1, 3, 64])
def test_fp8_rows_keep_their_largest_value_and_three_bits_of_the_rest(dim: int) -> None:
    rows = few_bits_rows(dim)
    decoded = decode(RowFormat.FP8, encode(RowFormat.FP8, rows), dim)
    largest = rows.abs().amax(1, keepdim=True)
    # Half of a step of 3 fraction bits, or of fp8's smallest subnormal times the scale.
    bound = torch.maximum(rows.abs() * 2**-4, largest / 448 * 2**-10) * (1 + 1e-5)
    assert bool(((decoded - rows).abs() <= bound)[3:].all())
