"""A delta version with all that a version may have: raw ids, ordered rows, a sequence, overlays."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.id_map_spec import IdMapSpec, SharedRows
from sharded_infer.specs.model_spec import ModelSpec, QuantizationSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.raw_ids import source_of

ORDERED_ROWS = 4096
SPEC = ModelSpec(
    "featured",
    (
        TableSpec("user", 60, 4, id_map=IdMapSpec("error")),
        TableSpec("shop", 20, 5, id_map=IdMapSpec(SharedRows((3, 7, 19)))),
        TableSpec("country", 30, 3, out_of_range="ignore"),
        TableSpec("ad", ORDERED_ROWS, 4),
        TableSpec("item", 30, 8, features=("candidate", "clicks")),
        TableSpec("action", 5, 4),
    ),
    tower=TowerSpec(user_inputs=("seen",)),
    quantization=QuantizationSpec("fp32"),
    sequences={"seen": SequenceSpec(16, features=("clicks", "action"), dense={"age": 1})},
)
# Raw ids of users and shops; the row of each is its position.
RAW_IDS: dict[str, NDArray[np.int64]] = {
    table.name: np.random.default_rng(0).integers(-(2**63), 2**63 - 1, table.rows - 5)
    for table in SPEC.mapped_tables
}


class Sums(nn.Module):
    def forward(
        self, seen: Tensor, seen_lengths: Tensor, age: Tensor, embeddings: Tensor
    ) -> Tensor:
        user = seen.sum((1, 2)) + age.sum((1, 2)) + seen_lengths.to(torch.float32)
        return user + embeddings.sum(1)


def publish_featured(repository: Path) -> Path:
    """Publish version 1 and, with a changed row and a new one, version 2; return its folder."""
    generator = torch.Generator().manual_seed(3)
    publish(
        SPEC,
        {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in SPEC.tables},
        Sums(),
        repository,
        id_maps={
            name: source_of({raw: row for row, raw in enumerate(ids.tolist())})
            for name, ids in RAW_IDS.items()
        },
        order_rows="frequency",
        frequencies={"ad": np.arange(ORDERED_ROWS)},
    )
    changes = {"country": ChangedRows(np.array([1, 30]), torch.ones(2, 3))}
    return publish_delta(SPEC.name, changes, repository).path
