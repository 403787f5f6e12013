from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.machine import InstructionSet, instruction_sets
from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from quant.encoder import EncodedRows, UnrepresentableRowError, encode_integers
from tests.quant import test_encoder
from tests.reference.row_encoding import encode

INTEGERS = [f for f in RowFormat if f.is_integer]
DIMS = [1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 64, 100, 128, 1000, 1024]


def positive_zeros(rows: Tensor) -> Tensor:
    """Whether -0.0 or 0.0 is a row's minimum depends on the order of the search."""
    return torch.where(rows == 0, 0.0, rows)


def hard_rows(dim: int) -> Tensor:
    return positive_zeros(test_encoder.hard_rows(dim))


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize("row_format", INTEGERS)
@pytest.mark.parametrize("dim", DIMS)
def test_bytes_without_clipping_are_those_of_the_reference(
    instruction_set: InstructionSet, row_format: RowFormat, dim: int
) -> None:
    rows = hard_rows(dim)
    encoded = encode_integers(row_format, rows, clip=False, instruction_set=instruction_set)
    assert torch.equal(encoded.stored, encode(row_format, rows, clip=False))
    assert encoded.minmax_squared_errors is None


@pytest.mark.parametrize("row_format", INTEGERS)
@pytest.mark.parametrize("dim", DIMS)
def test_instruction_sets_give_the_same_bytes_and_errors(row_format: RowFormat, dim: int) -> None:
    rows = hard_rows(dim)
    results = [encode_integers(row_format, rows, instruction_set=s) for s in instruction_sets()]
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(parts(results[0]), parts(other), strict=True))


@pytest.mark.parametrize("row_format", INTEGERS)
@pytest.mark.parametrize("dim", DIMS)
def test_errors_are_those_of_the_rows_as_they_are_read(row_format: RowFormat, dim: int) -> None:
    rows = hard_rows(dim)
    encoded = encode_integers(row_format, rows)
    error = (decode(row_format, encoded.stored, dim) - rows).double()
    near = {"rtol": 1e-4, "atol": 1e-30, "check_dtype": False}
    torch.testing.assert_close(encoded.squared_errors, error.square().sum(1), **near)
    torch.testing.assert_close(encoded.max_errors, error.abs().amax(1), **near)
    torch.testing.assert_close(encoded.squares, rows.double().square().sum(1), **near)


@pytest.mark.parametrize("row_format", [RowFormat.INT4, RowFormat.INT2])
@pytest.mark.parametrize("dim", DIMS)
def test_clipped_rows_are_the_references_and_never_worse_than_minimum_to_maximum(
    row_format: RowFormat, dim: int
) -> None:
    rows = hard_rows(dim)
    encoded = encode_integers(row_format, rows)
    minmax = encoded.minmax_squared_errors
    assert minmax is not None
    assert bool((encoded.squared_errors <= minmax).all())
    # Two ranges of a row may have the same error but for the order of a sum.
    wanted = decode(row_format, encode(row_format, rows), dim) - rows
    torch.testing.assert_close(
        encoded.squared_errors, wanted.square().sum(1), rtol=1e-3, atol=1e-30
    )
    plain = decode(row_format, encode(row_format, rows, clip=False), dim) - rows
    torch.testing.assert_close(minmax, plain.square().sum(1), rtol=1e-4, atol=1e-30)


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    st.sampled_from(INTEGERS),
    st.sampled_from(instruction_sets()),
)
def test_any_row_is_encoded_or_refused_as_the_reference_does(
    numbers: list[float], row_format: RowFormat, instruction_set: InstructionSet
) -> None:
    rows = positive_zeros(torch.tensor([numbers]))

    def reason_or_bytes(run: Callable[[], Tensor]) -> str | list[int]:
        try:
            return run()[0].tolist()
        except UnrepresentableRowError as error:
            return error.reason

    ours = reason_or_bytes(
        lambda: (
            encode_integers(row_format, rows, clip=False, instruction_set=instruction_set).stored
        )
    )
    assert ours == reason_or_bytes(lambda: encode(row_format, rows, clip=False))


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize("row_format", INTEGERS)
@pytest.mark.parametrize("dim", [1, 16, 21])
@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
def test_the_first_row_that_is_no_number_is_named(
    instruction_set: InstructionSet, row_format: RowFormat, dim: int, strange: float
) -> None:
    rows = torch.randn(9, dim, generator=torch.Generator().manual_seed(0))
    rows[5, dim - 1] = rows[7, 0] = strange
    with pytest.raises(UnrepresentableRowError, match="holds NaN") as refused:
        encode_integers(row_format, rows, instruction_set=instruction_set)
    assert refused.value.row == 5


def parts(encoded: EncodedRows) -> list[Tensor]:
    return [encoded.stored, encoded.squared_errors, encoded.squares, encoded.max_errors]
