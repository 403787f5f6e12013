from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sharded_infer import ChangedRows, compact, open_model, publish, publish_delta
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.mapped_id_maps import open_id_maps
from sharded_infer.errors import WeightsError
from sharded_infer.specs.id_map_spec import HashedRows, IdMapSpec, SharedRows
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.support.delta_model import Scorer
from tests.support.raw_ids import source_of

Unknown = Literal["zero", "error"] | SharedRows | HashedRows
ROWS, DIM = 40, 8
Ids = NDArray[np.int64]
KNOWN = np.array([-1, 2**63 - 1, -(2**63), 0, 5, 2**40, *range(100, 134)], np.int64)


def publish_raw(
    folder: Path, unknown: Unknown, ids: Ids, rows: Ids, weight: torch.Tensor, samples: object
) -> Path:
    weights = {"item": weight, "shop": torch.arange(72.0).view(9, DIM) / 72}
    item = TableSpec("item", len(weight), DIM, pooling="mean", id_map=IdMapSpec(unknown))
    spec = ModelSpec("raw", (item, TableSpec("shop", 9, DIM)))
    maps = {"item": source_of(dict(zip(ids.tolist(), rows.tolist(), strict=True)))}
    return publish(spec, weights, Scorer(2 * DIM), folder, samples=samples, id_maps=maps).path


@pytest.mark.parametrize("unknown", ["zero", "error", SharedRows((39,))])
def test_changed_ids_are_those_of_a_whole_publication(tmp_path: Path, unknown: Unknown) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(ROWS, DIM, generator=generator)
    rows = np.random.default_rng(2).permutation(ROWS)
    samples = {"item": np.array([[5], [101], [102]]), "shop": np.array([[1], [2], [8]])}
    base = publish_raw(tmp_path / "deltas", unknown, KNOWN, rows, weight, samples)
    new, removed = np.array([77, -9, 2**62]), np.array([110, 133, 4444])
    ids = np.concatenate([new[:1], KNOWN[3:9], new[1:]])
    values = torch.randn(len(ids), DIM, generator=generator)
    changes = {"item": ChangedRows(ids, values, removed=removed)}
    delta = publish_delta("raw", changes, tmp_path / "deltas")

    rows_of = dict(zip(KNOWN.tolist(), rows.tolist(), strict=True))
    rows_of |= dict(zip(new.tolist(), range(ROWS, ROWS + len(new)), strict=True))
    grown = torch.cat([weight, torch.zeros(len(new), DIM)])
    grown[[rows_of[one] for one in ids.tolist()]] = values
    for one in removed.tolist():
        rows_of.pop(one, None)
    left, their = np.array(list(rows_of)), np.array(list(rows_of.values()))
    whole = publish_raw(tmp_path / "whole", unknown, left, their, grown, samples)

    index = "id_maps/item.index"
    assert (delta.path / index).read_bytes() == (whole / index).read_bytes()
    for id_map in open_id_maps(open_artifact(delta.path)).values():
        id_map.check()
    asked = [*left.tolist(), *([] if unknown == "error" else [110, 133, 4444, 78])]
    request = {"item": np.array(asked)[:, None], "shop": np.zeros((len(asked), 1), np.int64)}
    scores = [open_model(path).predict(request)["score"] for path in (delta.path, whole)]
    assert np.array_equal(*scores)
    compacted = compact(tmp_path / "deltas", "raw")
    assert open_artifact(compacted.path).manifest.format_version == 2
    assert np.array_equal(open_model(compacted.path).predict(request)["score"], scores[0])
    changes = {"item": ChangedRows(ids[:3], values[:3] + 1)}
    again = publish_delta("raw", changes, tmp_path / "deltas")
    assert (again.path / index).samefile(compacted.path / index)
    assert open_artifact(base).manifest.stored_tables()["item"].rows == ROWS


def test_ids_that_share_a_row_are_not_changed_apart(tmp_path: Path) -> None:
    samples = {"item": np.array([[5]]), "shop": np.array([[1]])}
    publish_raw(tmp_path, "zero", KNOWN, np.arange(ROWS) // 2, torch.ones(ROWS, DIM), samples)
    rows = ChangedRows(KNOWN[:2], torch.ones(2, DIM))
    with pytest.raises(WeightsError, match="ids -1 and 9223372036854775807 have the same row, 0"):
        publish_delta("raw", {"item": rows}, tmp_path)


def test_a_table_with_hashed_unknown_ids_gets_no_new_ones(tmp_path: Path) -> None:
    samples = {"item": np.array([[5]]), "shop": np.array([[1]])}
    unknown = HashedRows(rows=ROWS, buckets=4)
    publish_raw(tmp_path, unknown, KNOWN, np.arange(ROWS), torch.ones(ROWS, DIM), samples)
    publish_delta("raw", {"item": ChangedRows(KNOWN[:2], torch.zeros(2, DIM))}, tmp_path)
    rows = ChangedRows(np.array([4444]), torch.ones(1, DIM))
    with pytest.raises(WeightsError, match="id 4444 is new, but a hash chooses the rows"):
        publish_delta("raw", {"item": rows}, tmp_path)


def test_hashed_ids_have_changes_by_rows(tmp_path: Path) -> None:
    spec = ModelSpec("raw", (TableSpec("item", ROWS, DIM, id_map=IdMapSpec(hashed="identity")),))
    publish(spec, {"item": torch.ones(ROWS, DIM)}, Scorer(DIM), tmp_path)
    changes = {"item": ChangedRows(np.array([3]), torch.zeros(1, DIM))}
    model = open_model(publish_delta("raw", changes, tmp_path).path)
    scores = model.predict({"item": np.array([[3], [3 + ROWS], [4]])})["score"]
    assert scores[0] == scores[1] != scores[2]
