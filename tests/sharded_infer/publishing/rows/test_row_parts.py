import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.ids.partition import parts_of
from sharded_infer import Model, TableSpec, open_model, publish, publish_part
from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.errors import SpecError
from sharded_infer.specs.id_map_spec import IdMapSpec, IdPartition, SharedRows
from tests.sharded_infer.publishing.test_id_maps import pooled
from tests.sharded_infer.publishing.test_parts import manifest_of
from tests.support.raw_cluster import (
    MAPS,
    SPEC,
    TABLES,
    narrow_topology,
    publish_raw_cluster,
    publish_raw_parts,
    raw_inputs,
    raw_sources,
    trained_weights,
)
from tests.support.raw_ids import Sum, source_of
from tests.support.servers import Command

PARTED = ("user", "item", "shop", "ad")


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model(publish_raw_parts(tmp_path_factory.mktemp("parts") / "models", 3))


def partition_of(model: Model, table: str) -> IdPartition:
    id_map = next(one.id_map for one in model.spec.tables if one.name == table)
    assert id_map is not None and id_map.partition is not None
    return id_map.partition


def test_embeddings_are_those_of_rows_as_trained(parted: Model, tmp_path: Path) -> None:
    as_trained = open_model(publish_raw_cluster(tmp_path, 1, ("whole",)))
    for seed, batch in enumerate((1, 9, 40)):
        inputs = raw_inputs(batch, seed, weighted=batch == 9)
        found, wanted = pooled(parted, inputs), pooled(as_trained, inputs)
        # Parts of sums are added in another order.
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)
    verify_files(parted.artifact, blocks=True)


@pytest.mark.parametrize("table", PARTED)
def test_each_part_has_the_ids_of_its_hashes(parted: Model, table: str) -> None:
    partition, id_map = partition_of(parted, table), parted.id_maps[table]
    id_map.check()
    ids = np.array([*MAPS[table]])
    strange = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 300)
    firsts = np.array(partition.first_rows)
    for asked, rows in ((ids, id_map.known(ids)), (strange, id_map.unknown_rows(strange))):
        read = rows >= 0
        parts = np.searchsorted(firsts, rows[read], "right") - 1
        np.testing.assert_array_equal(parts, parts_of(asked[read], partition.first_hashes))
    assert len(np.unique(parts_of(ids, partition.first_hashes))) == len(firsts) > 1


@pytest.mark.parametrize(("table", "copies"), [("shop", (0,)), ("ad", (0, 1, 2))])
def test_unknown_ids_rows_are_in_every_part(
    parted: Model, table: str, copies: tuple[int, ...]
) -> None:
    partition, trained = partition_of(parted, table), next(t for t in TABLES if t.name == table)
    published = next(t for t in parted.spec.tables if t.name == table)
    assert published.id_map is not None and isinstance(published.id_map.unknown, SharedRows)
    assert published.id_map.unknown.rows == copies
    assert published.rows - trained.rows >= len(copies) * (len(partition.first_rows) - 1)
    [piece] = next(t.pieces for t in parted.artifact.manifest.tables if t.name == table)
    assert piece.rows == published.rows


TINY = TableSpec("item", rows=8, dim=4, id_map=IdMapSpec("zero"))
NARROW = '[[devices]]\ncard = "cpu"\ncount = 2\nhost = {}\nmemory = "0.04KB"\n'


def tiny(folder: Path, table: TableSpec, ids: dict[int, int]) -> TableSpec:
    topology = folder / "two.toml"
    topology.write_text(NARROW.format(0) + NARROW.format(1))
    spec = replace(SPEC, name="tiny", tables=(table,))
    weights = {"item": torch.arange(32.0).reshape(8, 4)}
    options: dict[str, Any] = {"topologies": (str(topology),), "id_maps": {"item": source_of(ids)}}
    published = publish(spec, weights, Sum(), folder / "models", **options)
    [found] = open_artifact(published.path).manifest.model_spec().tables
    return found


def test_ids_of_a_shared_row_are_in_no_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = {10 * row: row for row in range(8)}
    (tmp_path / "one").mkdir()
    parts = tiny(tmp_path / "one", TINY, ids)
    assert parts.id_map is not None and parts.id_map.partition is not None
    assert "cuts it by rows" not in caplog.text
    (tmp_path / "other").mkdir()
    whole = tiny(tmp_path / "other", TINY, ids | {1: 5})
    assert whole.id_map is not None and whole.id_map.partition is None
    assert "'item': a plan cuts it by rows, but its ids cannot be put" in caplog.text


def test_joined_parts_of_a_publish_are_a_whole_one_with_ordered_rows_too(tmp_path: Path) -> None:
    sources, generator = raw_sources(), np.random.default_rng(4)
    for name in ("item", "shop", "page"):
        rows = next(t.rows for t in TABLES if t.name == name)
        uses = [(generator.integers(0, rows, 500), generator.zipf(1.3, 500))]
        sources[name] = replace(sources[name], frequencies=lambda uses=uses: iter(uses))
    options: dict[str, Any] = {
        "topologies": (narrow_topology(tmp_path, 2),),
        "id_maps": sources,
        "order_rows": "frequency",
    }
    whole = publish(SPEC, trained_weights(), Sum(), tmp_path / "whole", **options).path
    for part in (3, 1, 2):
        publish_part(SPEC, trained_weights(), tmp_path / "parts", part=part, parts=3, **options)
    joined = publish(SPEC, trained_weights(), Sum(), tmp_path / "parts", parts=3, **options).path
    assert manifest_of(joined) == manifest_of(whole)
    tables = open_artifact(whole).manifest.model_spec().tables
    parted = {t.name for t in tables if t.id_map is not None and t.id_map.partition is not None}
    assert parted == set(PARTED)


def test_a_spec_that_says_its_parts_is_refused(tmp_path: Path) -> None:
    id_map = IdMapSpec("zero", partition=IdPartition((0,), (0,)))
    with pytest.raises(SpecError, match="table 'item': id_map.partition: expected none"):
        tiny(tmp_path, replace(TINY, id_map=id_map), {})


def test_inspect_says_how_many_parts_there_are(parted: Model, sharded_infer: Command) -> None:
    shown = sharded_infer("inspect", "-r", parted.artifact.path.parents[1])
    assert re.search(r"item \S+ kB in \d parts \(an unknown id is left out\)", shown.out)
    words = r"shop \S+ kB in \d parts \(an unknown id reads row 0 of its part\)"
    assert re.search(words, shown.out)
