"""Attention biases of pairs of positions, by the difference of a number of theirs.

    out[i, j] = f(numbers[j] - numbers[i]) + fixed[i, j]

For example a learned bias by time: the span between two items chooses a bucket, and the bucket a
weight. `step_function` evaluates f to find the thresholds between which it is constant. The
compiled pass (`native/abi/pair_biases.h`) finds a difference's threshold in a small table.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kernels.abi.pair_biases import PairBiases

# Keys from one power of two to the next.
_OCTAVE: Final = 2**23
_LEAST: Final = -(2**31)
_MOST_THRESHOLDS: Final = 2**12
# Differences of similar sizes read few of them.
_MOST_CELLS: Final = 2**16
_TRIED: Final = 2**14
# Keys beside a threshold where rounding within the function may move it.
_ROUNDED: Final = 8


class StepFunction(NamedTuple):
    """A function of fp32 numbers that is constant between thresholds, as a table.

    Attributes:
        thresholds: int32 `[cells]`, a key in each cell; the least key of all where it has none.
        values: fp32 `[cells + 1]`: a cell's below its threshold, then those from the last one on.
        first_cell: the first cell's keys, divided by `2^shift`.
        no_number: the function of what is no number.
        infinite: of minus infinity, and of infinity, which the table leaves out: for them most
            functions that count in whole numbers have a value of their own, far from the others.
    """

    thresholds: Tensor
    values: Tensor
    first_cell: int
    shift: int
    no_number: float
    infinite: tuple[float, float]

    def __call__(self, numbers: Tensor) -> Tensor:
        """The function's values, in torch's operators."""
        keys = _keys(numbers)
        cells = ((keys >> self.shift) - self.first_cell).clamp(0, len(self.thresholds) - 1)
        found = self.values[cells + (keys >= self.thresholds[cells])]
        for number, value in zip((-torch.inf, torch.inf), self.infinite, strict=True):
            found = torch.where(numbers == number, value, found)
        return torch.where(numbers.isnan(), self.no_number, found)


def step_function(function: Callable[[Tensor], Tensor]) -> StepFunction | None:
    """The table of a function, None if not constant between a few thousand thresholds.

    `function` maps fp32 `[n]` elementwise, monotonically between two powers of two. A threshold is
    exact to its own rounding, within a few numbers.
    """
    bound = int(_keys(torch.tensor([torch.inf])))
    ends = torch.arange(-255, 256) * _OCTAVE
    known = torch.cat([ends.clamp(-bound, bound - 1), torch.tensor([bound - 1])])
    known = known[known.diff(prepend=known[:1] - 1) > 0]
    low, high = known[:-1], known[1:]
    values = function(_numbers(known))
    thresholds: list[Tensor] = []
    of_low, of_high = values[:-1], values[1:]
    while len(low):
        differs = of_low != of_high
        low, high, of_low, of_high = (one[differs] for one in (low, high, of_low, of_high))
        if len(low) > _MOST_THRESHOLDS:
            return None
        thresholds.append(high[high - low == 1])
        wide = high - low > 1
        low, high, of_low, of_high = (one[wide] for one in (low, high, of_low, of_high))
        middle = (low + high) // 2
        of_middle = function(_numbers(middle))
        low, high = torch.cat([low, middle]), torch.cat([middle, high])
        of_low, of_high = torch.cat([of_low, of_middle]), torch.cat([of_middle, of_high])
    found = _table(torch.cat(thresholds).sort().values, function)
    return found if found is not None and _is_same(found, function, bound) else None


def pair_bias_fields(function: StepFunction, *, turned: bool, causal: bool) -> PairBiases:
    """The compiled pass without its operands; `function` must be kept.

    Args:
        turned: a difference is `numbers[i] - numbers[j]`.
        causal: positions behind a position's own need no bias; theirs are not written.
    """
    made = PairBiases()
    made.thresholds, made.values = function.thresholds.data_ptr(), function.values.data_ptr()
    made.cells, made.first_cell = len(function.thresholds), function.first_cell
    made.shift, made.no_number = function.shift, function.no_number
    made.least, made.greatest = function.infinite
    made.turned, made.causal = turned, causal
    return made


def _keys(numbers: Tensor) -> Tensor:
    """Int64 keys in the numbers' order."""
    bits = numbers.view(torch.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)


def _numbers(keys: Tensor) -> Tensor:
    bits = keys.to(torch.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32)


def _table(thresholds: Tensor, function: Callable[[Tensor], Tensor]) -> StepFunction | None:
    """A table whose cells have one threshold at most."""
    shift = next(
        bits for bits in range(23, -1, -1) if bool(((thresholds >> bits).diff() > 0).all())
    )
    places = thresholds >> shift
    first = int(places[0]) if len(places) else 0
    count = int(places[-1]) - first + 1 if len(places) else 1
    if count > _MOST_CELLS:
        return None
    starts = (torch.arange(first, first + count) << shift).clamp(_LEAST, -_LEAST - 1)
    with_one = torch.full((count,), _LEAST)
    with_one[places - first] = thresholds
    # A cell without a threshold is above it.
    known = torch.where(with_one == _LEAST, starts, with_one)
    below = torch.where(with_one == _LEAST, starts, with_one - 1)
    no_number, *infinite = function(torch.tensor([torch.nan, -torch.inf, torch.inf])).tolist()
    of_known, of_below = function(_numbers(known)), function(_numbers(below))
    if not torch.equal(of_below[1:], of_known[:-1]):
        return None
    values = torch.cat([of_below[:1], of_known])
    limits = with_one.to(torch.int32)
    return StepFunction(limits, values, first, shift, no_number, (infinite[0], infinite[1]))


def _is_same(found: StepFunction, function: Callable[[Tensor], Tensor], bound: int) -> bool:
    """True if the table has the function's values at many numbers of all sizes."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(-bound - 1, bound + 1, (_TRIED,), generator=generator)
    limits = found.thresholds[found.thresholds != _LEAST].to(torch.int64)
    if len(limits):
        above = torch.searchsorted(limits, keys).clamp(max=len(limits) - 1)
        nearest = torch.minimum(
            (keys - limits[above]).abs(), (keys - limits[(above - 1).clamp(min=0)]).abs()
        )
        keys = keys[nearest > _ROUNDED]
    numbers = _numbers(keys)
    return torch.equal(found(numbers), function(numbers))
