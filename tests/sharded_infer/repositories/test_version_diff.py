from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels.row_format import RowFormat
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.publishing.publication import publish
from sharded_infer.repositories import version_diff
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.version_diff import count_changed_rows, diff_versions
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.support.part_model import Scorer

SPEC = ModelSpec(
    "tiny",
    (
        TableSpec("ads", rows=50, dim=4, format=RowFormat.FP32),
        TableSpec("user", rows=20, dim=3, format=RowFormat.BF16),
        TableSpec("old", rows=5, dim=2, format=RowFormat.INT8),
    ),
)


@pytest.fixture
def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in SPEC.tables}


def test_rows_formats_sizes_and_errors_are_told(weights: dict[str, Tensor], location: str) -> None:
    repository = Repository(location)
    publish(SPEC, weights, Scorer(), repository)
    changed = {name: weight.clone() for name, weight in weights.items()}
    changed["ads"][[3, 7, 49]] += 1.0
    changed["new"] = torch.ones(4, 2)
    changed["user"] = torch.cat([changed["user"], torch.ones(2, 3)])
    tables = (
        SPEC.tables[0],
        replace(SPEC.tables[1], rows=22),
        TableSpec("new", rows=4, dim=2, format=RowFormat.FP16),
    )
    publish(replace(SPEC, tables=tables), changed, Scorer(), repository)
    found = diff_versions(repository, "tiny", (1, 2))
    by_name = {table.name: table for table in found.tables}
    assert list(by_name) == ["ads", "user", "new", "old"]
    changed_rows = {name: table.rows_changed for name, table in by_name.items()}
    assert changed_rows == {"ads": 3, "user": 0, "new": None, "old": None}
    assert by_name["new"].before is None and by_name["old"].after is None
    user = by_name["user"]
    assert user.before is not None and user.after is not None
    assert (user.before.rows, user.after.rows, user.after.row_format) == (20, 22, "bf16")
    assert user.after.relative_error is not None and 0 < user.after.relative_error < 0.01
    assert found.gates[0].max_score_diff <= found.gates[0].allowed_score_diff


def test_versions_of_the_same_weights_differ_in_nothing(
    weights: dict[str, Tensor], tmp_path: Path
) -> None:
    repository = Repository(tmp_path)
    for _ in range(2):
        publish(SPEC, weights, Scorer(), repository)
    found = diff_versions(repository, "tiny", (1, 2))
    assert [table.rows_changed for table in found.tables] == [0, 0, 0]
    assert not found.tower_changed
    assert found.file_bytes[0] > found.new_bytes


def test_rows_are_compared_across_pieces_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_diff, "_CHUNK_BYTES", 12)
    rows = torch.arange(40, dtype=torch.uint8).view(10, 4)
    other = rows.clone()
    other[[0, 3, 4, 9], 2] += 1

    def pieces(table: Tensor, *cuts: int) -> list[TablePiece]:
        head = torch.zeros(5, dtype=torch.uint8)
        return [
            TablePiece(torch.cat([head, table[a:b].flatten()]), 5, a, b - a)
            for a, b in pairwise([0, *cuts, len(table)])
        ]

    assert count_changed_rows(pieces(rows, 4), pieces(other, 1, 3, 9), 4) == 4
    assert count_changed_rows(pieces(rows), pieces(other[:4], 2), 4) == 2
    assert count_changed_rows(pieces(rows, 5), pieces(rows, 4), 4) == 0
