from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quant.sources.weight_source import TensorSource
from sharded_infer.engines.model import open_model
from sharded_infer.errors import InputError, SpecError, WeightsError
from sharded_infer.importing.id_maps.id_map_source import Chunk, IdMapSource
from sharded_infer.publishing.publication import publish
from sharded_infer.publishing.rows.row_order import row_order
from sharded_infer.publishing.sampled_ids import mapped_samples, with_frequencies
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.id_map_spec import HashedRows, IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.sharded_infer.publishing.test_id_maps import pooled
from tests.sharded_infer.publishing.test_id_maps import raw as raw
from tests.support.raw_ids import (
    SPEC,
    TABLES,
    TOPOLOGIES,
    RawModel,
    Sum,
    made_maps,
    raw_request,
    source_of,
)

ITEM = TableSpec("item", rows=8, dim=2, id_map=IdMapSpec("zero"))
TINY = ModelSpec("tiny", (ITEM,), dense=SPEC.dense)
# Each row has one id, ten times its number.
IDS = {10 * row: row for row in range(8)}
WEIGHT = {"item": torch.arange(16.0).reshape(8, 2)}


def used(source: IdMapSource, rows: list[int], counts: list[int]) -> IdMapSource:
    chunk: Chunk = (np.array(rows), np.array(counts))
    return replace(source, frequencies=lambda: iter([chunk]))


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, with statistics of all tables with id maps but `user`."""
    generator = torch.Generator().manual_seed(3)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in TABLES}
    sources, rng = {}, np.random.default_rng(2)
    for table in SPEC.mapped_tables:
        sources[table.name] = source_of(made_maps()[table.name])
        if table.name != "user":
            rows = rng.integers(0, table.rows, 500).tolist()
            sources[table.name] = used(sources[table.name], rows, rng.zipf(1.3, 500).tolist())
    folder = tmp_path_factory.mktemp("ordered")
    options: dict[str, Any] = {"order_rows": "frequency", "topologies": TOPOLOGIES}
    return publish(SPEC, weights, Sum(), folder, id_maps=sources, **options).path


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_embeddings_and_scores_stay_as_trained(raw: RawModel, ordered: Path, topology: str) -> None:
    as_trained = open_model(raw.path, topology=topology)
    by_frequency = open_model(ordered, topology=topology)
    known = np.array([*raw.maps["item"]])
    moved, before = (m.id_maps["item"].known(known) for m in (by_frequency, as_trained))
    assert not np.array_equal(moved, before)
    for seed, batch in enumerate((1, 9, 33)):
        inputs, _ = raw_request(raw, batch, seed, weighted=("clicked", "shop"))
        found, wanted = pooled(by_frequency, inputs), pooled(as_trained, inputs)
        if topology == "cpu:1":
            assert torch.equal(found, wanted)
        # Where tables are split by rows, the parts of a sum have other rows.
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)
        scores = [model.predict(inputs)["score"] for model in (by_frequency, as_trained)]
        assert np.allclose(*scores, rtol=1e-5, atol=1e-5)


def test_rows_of_like_frequency_stay_in_their_order(tmp_path: Path) -> None:
    source = used(source_of(IDS), [0, 1, 2, 3, 4, 5, 3], [3, 7, 2, 4, 0, 1, 1])
    options: dict[str, Any] = {"id_maps": {"item": source}, "order_rows": "frequency"}
    model = open_model(publish(TINY, WEIGHT, Sum(), tmp_path, **options).path)
    rows = model.id_maps["item"].known(np.arange(0, 80, 10)).tolist()
    # Those used 7, 5, 3 and 2 times and once are classes; so are all that were never used.
    assert [rows.index(place) for place in range(8)] == [1, 3, 0, 2, 5, 4, 6, 7]
    inputs = {"item": np.array([30, 70]), "age": np.zeros((2, 1), np.float32)}
    assert pooled(model, inputs).tolist() == [[6.0, 7.0], [14.0, 15.0]]


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.3])
def test_few_classes_serve_nearly_what_the_exact_order_would(exponent: float) -> None:
    rows = 2**16
    counts = np.random.default_rng(0).permutation(np.arange(1.0, rows + 1) ** -exponent * 1e6)
    spec = replace(TINY, tables=(replace(ITEM, rows=rows, id_map=None),))
    weights = TensorSource({"item": torch.zeros(rows, 2)})
    found = row_order("frequency", spec, weights, {}, None, {"item": counts.astype(np.int64)})
    order = found.placed["item"]
    assert np.flatnonzero(order[1:] < order[:-1]).size in (13, 14)
    served = np.cumsum(counts[order]) / counts.sum()
    ideal = np.cumsum(np.sort(counts)[::-1]) / counts.sum()
    # Memory for as little as 1.5% of the rows, up to all of them.
    assert (ideal - served)[rows // 64 :].max() < 0.01


def test_frequencies_of_samples_count_where_a_map_has_none() -> None:
    spec = replace(TINY, tables=(replace(ITEM, id_map=IdMapSpec("error")),))
    samples = [{"item": [10, 10, 5], "age": 1.0}, {"item": [70], "age": 1.0}]
    found = with_frequencies(spec, samples, {"item": source_of(IDS)})["item"]
    assert found.frequencies is not None
    ((rows, counts),) = found.frequencies()
    assert (rows.tolist(), counts.tolist()) == ([1, 7], [2, 1])
    own = used(source_of(IDS), [3], [1])
    assert with_frequencies(spec, samples, {"item": own})["item"] is own


def test_tables_whose_order_cannot_be_another_keep_theirs() -> None:
    hashed = replace(ITEM, name="hashed", id_map=IdMapSpec(HashedRows(8, 2)))
    one, other = (replace(ITEM, name=name, weights="shared") for name in ("one", "other"))
    spec = ModelSpec("m", (ITEM, hashed, one, other))
    weights = TensorSource(
        {"item": torch.rand(8, 2), "hashed": torch.rand(8, 2), "shared": torch.rand(8, 2)}
    )
    maps = {t.name: used(source_of(IDS), [7], [1]) for t in spec.tables}
    order = row_order("frequency", spec, weights, maps, None)
    assert list(order.orders) == ["item"]
    same = {name for name in maps if order.id_maps[name] is maps[name]}
    assert same == {"hashed", "one", "other"}


@pytest.mark.parametrize(
    ("rows", "counts", "words"),
    [
        ([8], [1], "frequencies of 0 at least, of rows 0 to 7, got 1 at least, of rows 8 to 8"),
        ([-1, 2], [1, 1], "of rows -1 to 2"),
        ([1, 2], [5, -4], "got -4 at least"),
    ],
)
def test_wrong_frequencies_are_refused(rows: list[int], counts: list[int], words: str) -> None:
    source = used(source_of(IDS), rows, counts)
    with pytest.raises(WeightsError, match=f"table 'item': a test's map: expected .*{words}"):
        row_order("frequency", TINY, TensorSource(WEIGHT), {"item": source}, None)


def test_histograms_are_those_of_the_new_order() -> None:
    source = used(source_of(IDS), [7, 6, 7], [6, 1, 3])
    given = {"item": FeatureStatistics(2.5, 1.1, (1.0, 0, 0, 0, 0, 0, 0, 0))}
    order = row_order("frequency", TINY, TensorSource(WEIGHT), {"item": source}, given)
    assert order.statistics == {"item": FeatureStatistics(2.5, 1.1, (0.9, 0.1, 0, 0, 0, 0, 0, 0))}
    unordered = row_order("as_trained", TINY, TensorSource(WEIGHT), {"item": source}, given)
    assert unordered.statistics is given and unordered.weights.read("item", 7, 8)[0, 0] == 14


def test_what_cannot_be_ordered_is_refused(tmp_path: Path) -> None:
    source = used(source_of(IDS), [5], [1])
    arguments: Any = (TINY, WEIGHT, Sum(), tmp_path)
    with pytest.raises(SpecError, match="expected a table of which it is known how often"):
        publish(*arguments, id_maps={"item": source_of(IDS)}, order_rows="frequency")
    with pytest.raises(InputError, match="as_trained or frequency, got 'hottest'"):
        publish(*arguments, id_maps={"item": source}, order_rows="hottest")
    samples = {"item": np.array([10]), "age": np.zeros((1, 1), np.float32)}
    mapped = mapped_samples(TINY, samples, {"item": source})
    with pytest.raises(InputError, match="expected raw ids of tables whose rows are ordered"):
        publish(*arguments, id_maps={"item": source}, order_rows="frequency", samples=mapped)
    assert not (tmp_path / "tiny").exists()
