"""A table's loss in each format, measured on a sample of its rows.

    loss = vectors * dim * sum over sampled rows (use of the row * mean squared error of the row)

is the expected squared error that the table adds to the pooled embeddings of one sample, if errors
of different rows are uncorrelated; `power` is the same sum of the embeddings themselves. Losses are
compared as shares of the power of all tables: noise to signal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.row_format import RowFormat
from quant.encoder import encode_zeroing
from quant.sources.table_weight import TableWeight

_SAMPLED_ROWS = 8192  # the mean over as many has a standard error of 1 to 2% on trained tables
_BLOCK_ROWS = 64  # read together: a page fault brings neighbours anyway


@dataclass(frozen=True, slots=True)
class FormatLosses:
    """A table's losses: squared errors by format, summed over a row and averaged over uses.

    `power` is the same of the rows' elements.
    """

    by_format: Mapping[RowFormat, float]
    power: float
    sampled_rows: int


def measure_losses(
    weight: TableWeight,
    formats: Sequence[RowFormat],
    use: Callable[[Tensor], Tensor],
    *,
    clip: bool = True,
) -> FormatLosses:
    """Encode a sample of rows, dependent only on the table's size, in each format.

    `use` maps int64 `[n]` row numbers to their use counts, fp32 `[n]`; `clip` searches the range of
    int4 and int2 rows. Raises UnrepresentableRowError if a format cannot hold a sampled row.
    """
    numbers = sampled_rows(weight.rows)
    blocks = torch.tensor_split(numbers, (torch.diff(numbers) > 1).nonzero()[:, 0] + 1)
    rows = torch.cat([weight.read(int(b[0]), int(b[-1]) + 1) for b in blocks])
    uses = use(numbers).double()
    uses = uses / uses.sum() if float(uses.sum()) else torch.full_like(uses, 1 / len(uses))
    by_format = {}
    for row_format in formats:
        encoded, _ = encode_zeroing(row_format, rows, clip=clip)
        by_format[row_format] = float(uses @ encoded.squared_errors.double())
    finite = torch.where(torch.isfinite(rows), rows, 0.0)
    power = float(uses @ finite.double().square().sum(1))
    return FormatLosses(by_format, power, len(numbers))


def sampled_rows(rows: int) -> Tensor:
    """Row numbers of the sample, int64, ascending: all, or blocks spread evenly over the table."""
    if rows <= _SAMPLED_ROWS:
        return torch.arange(rows)
    blocks = _SAMPLED_ROWS // _BLOCK_ROWS
    starts = torch.arange(blocks) * (rows - _BLOCK_ROWS) // (blocks - 1)
    numbers = (starts[:, None] + torch.arange(_BLOCK_ROWS)).flatten()
    # Blocks overlap where the table is hardly larger than the sample.
    return torch.cat([numbers[:1], numbers[1:][torch.diff(numbers.cummax(0).values) > 0]])
