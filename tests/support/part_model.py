"""A small model whose tables have several chunks, to publish in parts."""

from torch import Generator, Tensor, nn, randn

from kernels.row_format import RowFormat
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

SPEC = ModelSpec(
    "ranker",
    (
        TableSpec("ads", rows=70_000, dim=32, format=RowFormat.INT8),
        TableSpec("user", rows=50_000, dim=24, format=RowFormat.INT4),
        TableSpec("flag", rows=1, dim=8, format=RowFormat.INT8),
        TableSpec("shop", rows=20_001, dim=20, format=RowFormat.BF16),
        TableSpec("day", rows=7, dim=4, format=RowFormat.INT8),
    ),
)


class Scorer(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings.sum(1)


def trained_tables() -> dict[str, Tensor]:
    generator = Generator().manual_seed(0)
    return {t.name: randn(t.rows, t.dim, generator=generator) / 40 for t in SPEC.tables}
