"""The compiled product: the bits of torch where sums are exact, whatever the sizes and options."""

import pytest
import torch
from torch import Tensor

from kernels.dense_step import ByteLevels, Stepped
from kernels.errors import InputError
from kernels.machine import MAX_INSTRUCTION_SET, ProcessorClass, limited_machine, machine
from kernels.product import PackedWeight, Product, product_dtypes, product_set
from tests.reference.product import product_by_torch

# Below, at and above a register's 16 and a panel's 64 columns; groups of 1, 2 and 4 numbers.
WIDTHS = (1, 16, 17, 64, 65, 130, 192)
INPUTS = (1, 2, 3, 4, 13, 64, 97)
# Each width with two inputs, each input with two widths.
SIZES = [(w, INPUTS[(i + more) % 7]) for i, w in enumerate(WIDTHS) for more in (0, 3)]
ROWS = (0, 1, 2, 5, 6, 7, 16, 29)


def variants() -> dict[tuple[str, torch.dtype], str]:
    """The class that selects each variant of a product that this machine can run."""
    found: dict[tuple[str, torch.dtype], str] = {}
    for limit in ProcessorClass:
        limits = {MAX_INSTRUCTION_SET: limit.name}
        here = limited_machine(machine().architecture, machine().processor, limits)
        for dtype in sorted(product_dtypes(here), key=str):
            chosen = product_set(dtype, here)
            if chosen is not None:
                found.setdefault((chosen.name, dtype), limit.name)
    return found


VARIANTS = [
    pytest.param(dtype, limit, id=f"{dtype}-{chosen}".removeprefix("torch.").lower())
    for (chosen, dtype), limit in variants().items()
]
pytestmark = pytest.mark.usefixtures("poisoned_memory")
compiled = pytest.mark.parametrize(("dtype", "limit"), VARIANTS, indirect=["limit"])


@pytest.fixture
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_INSTRUCTION_SET, request.param)


def numbers(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def integers(rows: int, width: int, most: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, (rows, width), generator=generator)


def weight_of(dtype: torch.dtype, width: int, inputs: int) -> Tensor:
    """Integers that sum exactly, whatever the order."""
    return integers(width, inputs, 127 if dtype is torch.int8 else 9, 1).to(dtype)


def x_of(dtype: torch.dtype, rows: int, inputs: int) -> Tensor:
    if dtype is torch.int8:
        return (integers(rows, inputs, 127, 2) + 128).to(torch.uint8)
    return integers(rows, inputs, 9, 2).to(dtype)


def product_of(
    dtype: torch.dtype,
    width: int,
    inputs: int,
    *,
    relu: bool = False,
    keep: bool = True,
    low: ByteLevels | torch.dtype | None = None,
) -> Product:
    scale = numbers(1, width, 3)[0].abs() * 1e-3 if dtype is torch.int8 else None
    return Product(
        PackedWeight(weight_of(dtype, width, inputs)),
        numbers(1, width, 4)[0],
        scale=scale,
        zero_point=119 if dtype is torch.int8 else 0,
        relu=relu,
        keep=keep,
        low=low,
    )


def assert_same(found: Stepped, wanted: Stepped) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype is other.dtype
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@compiled
@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(("width", "inputs"), SIZES)
def test_a_product_is_that_of_torch_and_its_weight_unpacks_to_itself(
    dtype: torch.dtype, width: int, inputs: int
) -> None:
    assert torch.equal(PackedWeight(weight := weight_of(dtype, width, inputs)).unpacked(), weight)
    product = product_of(dtype, width, inputs)
    for rows in ROWS:
        x = x_of(dtype, rows, inputs)
        assert_same(product(x), product_by_torch(product, x))


@compiled
@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("width", [48, 67])
@pytest.mark.parametrize("low", ["nothing", "bf16", "bytes"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("crosses", [False, True])
def test_what_follows_a_product_is_that_of_torch(
    dtype: torch.dtype, width: int, low: str, relu: bool, crosses: bool
) -> None:
    levels = ByteLevels(numbers(1, width, 5)[0].abs() + 1, 117)
    wanted = {"nothing": None, "bf16": torch.bfloat16, "bytes": levels}[low]
    product = product_of(dtype, width, 21, relu=relu, low=wanted)
    x, terms = x_of(dtype, 15, 21), {}
    if crosses:
        terms = {"values": numbers(15, width, 6), "first": numbers(15, width, 7)}
    assert_same(product(x, **terms), product_by_torch(product, x, **terms))


@compiled
@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("crosses", [False, True])
def test_a_poisoned_row_is_nan_and_poisons_what_follows(dtype: torch.dtype, crosses: bool) -> None:
    product = product_of(dtype, 70, 8, relu=True, low=ByteLevels(torch.ones(70), 100))
    poison = torch.zeros(9, 1)
    poison[4] = torch.nan
    terms = {"values": numbers(9, 70, 6), "first": numbers(9, 70, 7)} if crosses else {}
    x, bytes_of, after = product(x_of(dtype, 9, 8), poison, **terms)
    others = [row for row in range(9) if row != 4]
    assert x is not None and bool(x[4].isnan().all()) and bool(x[others].isfinite().all())
    assert bytes_of is not None and bool((bytes_of[4] == 255).all())
    assert after is not None and after.isnan()[:, 0].tolist() == [row == 4 for row in range(9)]


@pytest.mark.parametrize(
    ("dtype", "limit"), [v for v in VARIANTS if v.values[0] is not torch.int8], indirect=["limit"]
)
@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_row(dtype: torch.dtype, strange: float) -> None:
    product = product_of(dtype, 33, 13, relu=True)
    x = x_of(dtype, 7, 13)
    clean = product(x).x
    x[2, 12] = strange
    found, wanted = product(x), product_by_torch(product, x)
    assert_same(found, wanted)
    assert found.x is not None and clean is not None
    assert not bool(found.x[2].isfinite().all()) and torch.equal(found.x[3:], clean[3:])


@compiled
@pytest.mark.usefixtures("limit")
def test_a_row_has_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    weight = numbers(70, 51, 1)
    weight = (weight * 9).to(torch.int8) if dtype is torch.int8 else weight.to(dtype)
    scale = torch.full((70,), 0.01) if dtype is torch.int8 else None
    product = Product(PackedWeight(weight), scale=scale, zero_point=7 if scale is not None else 0)
    x = x_of(dtype, 23, 51) if dtype is torch.int8 else numbers(23, 51, 2).to(dtype)
    whole = product(x).x
    assert whole is not None
    for row in range(23):
        alone = product(x[row : row + 1]).x
        assert alone is not None and torch.equal(alone[0], whole[row])
    if dtype is not torch.int8:
        wanted = product_by_torch(product, x).x
        torch.testing.assert_close(whole, wanted, rtol=1e-5, atol=1e-4)


@compiled
@pytest.mark.usefixtures("limit")
def test_leading_dimensions_are_kept_and_rows_may_lie_apart(dtype: torch.dtype) -> None:
    product = product_of(dtype, 20, 12)
    x = x_of(dtype, 12, 12).view(4, 3, 12).transpose(0, 1)
    assert_same(product(x), product_by_torch(product, x))


@compiled
@pytest.mark.usefixtures("limit")
def test_what_does_not_fit_a_weight_is_refused(dtype: torch.dtype) -> None:
    product = product_of(dtype, 20, 12)
    with pytest.raises(InputError, match="expected .* of width 12, got torch.float64"):
        product(torch.zeros(2, 12, dtype=torch.float64))
    with pytest.raises(InputError, match="of width 12, got .* \\[2, 11\\]"):
        product(x_of(dtype, 2, 11))
    with pytest.raises(InputError, match="expected fp32 \\[2, 20\\]"):
        product(x_of(dtype, 2, 12), values=torch.zeros(2, 1), first=torch.zeros(2, 20))
    weight = PackedWeight(weight_of(dtype, 20, 12))
    scale = torch.ones(20) if dtype is torch.int8 else None
    for shape in ((1,), (19,), (1, 20), ()):
        with pytest.raises(InputError, match="expected a bias of \\[20\\], got"):
            Product(weight, torch.ones(shape), scale=scale)


@pytest.mark.parametrize(
    ("name", "dtype"), [("AVX2", torch.bfloat16), ("BASELINE", torch.float32), ("AMX", torch.half)]
)
def test_a_dtype_that_is_not_compiled_is_refused(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MAX_INSTRUCTION_SET, name)
    with pytest.raises(InputError, match=f"{dtype}: not compiled for this machine"):
        PackedWeight(torch.zeros(4, 4, dtype=dtype))
