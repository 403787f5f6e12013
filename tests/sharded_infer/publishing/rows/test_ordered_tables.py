from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quant.sources.checkpoint import weights_of
from sharded_infer import DenseSpec, ModelSpec, QuantizationSpec, TableSpec, TowerSpec, compact
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.mapped_id_maps import open_places
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import InputError, RequestError, WeightsError
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.publishing.deltas.changed_weights import changed_weights
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.publishing.publication import publish
from sharded_infer.publishing.rows.row_order import Frequencies
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.raw_ids import Arrays

TABLES = (
    TableSpec("item", 300, 8, features=("bought", "clicked")),
    TableSpec("shop", 50, 4, "mean", out_of_range="modulo", padding_idx=3),
    TableSpec("page", 40, 6, out_of_range="ignore", features=("page", "clicked"), padding_idx=7),
    TableSpec("seen", 30, 4, features=("seen",), out_of_range="ignore", padding_idx=0),
    TableSpec("country", 7, 3),
)
SPEC = ModelSpec(
    "ordered",
    TABLES,
    dense=DenseSpec({"age": 1}),
    tower=TowerSpec(),
    quantization=QuantizationSpec("int8"),
    sequences={"history": SequenceSpec(5, ("seen",))},
)
ORDERED = ("item", "shop", "page", "seen")


class Tower(nn.Module):
    def forward(
        self, age: Tensor, history: Tensor, history_lengths: Tensor, embeddings: Tensor
    ) -> Tensor:
        places = torch.arange(history.shape[1], device=history.device) + 1.0
        of_sequence = (history.sum(2) * places).sum(1) / (history_lengths + 1.0)
        return embeddings.mean(dim=1) + age.squeeze(1) + of_sequence


def trained(seed: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in TABLES}


def used() -> dict[str, Frequencies]:
    generator = np.random.default_rng(1)
    return {
        t.name: generator.zipf(1.3, t.rows) if t.name in ORDERED else np.ones(t.rows)
        for t in TABLES
    }


def request(batch: int, seed: int) -> Arrays:
    """Ids inside and outside of the tables that take them, and padding."""
    generator = np.random.default_rng(seed)
    inputs: Arrays = {"age": generator.normal(size=(batch, 1)).astype(np.float32)}
    limits = {"bought": (0, 300), "clicked": (0, 40), "shop": (-90, 120), "page": (-5, 60)}
    for name, (first, last) in {**limits, "seen": (-2, 34), "country": (0, 7)}.items():
        lengths = generator.integers(0, 5, batch)
        inputs[name] = generator.integers(first, last, lengths.sum())
        inputs["history.lengths" if name == "seen" else f"{name}.lengths"] = lengths
    return inputs


def scores(model: Model, inputs: Arrays) -> NDArray[np.float32]:
    return model.predict(inputs)["score"]


def publish_ordered(
    folder: Path, weights: dict[str, Tensor] | None = None, spec: ModelSpec = SPEC, **options: Any
) -> Path:
    options |= {"order_rows": "frequency", "frequencies": used()}
    return publish(spec, weights or trained(), Tower(), folder, **options).path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(SPEC, trained(), Tower(), tmp_path_factory.mktemp("plain")).path


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_ordered(tmp_path_factory.mktemp("ordered"), topologies=("cpu:1", "cpu:2"))


def test_hot_rows_come_first_in_the_file(ordered: Path) -> None:
    artifact = open_artifact(ordered)
    spec = artifact.manifest.model_spec()
    # All rows of `country` are used equally often: they stand as they were trained.
    assert tuple(table.name for table in spec.ordered_tables) == ORDERED
    assert artifact.manifest.format_version == 2
    tables = {table.name: table for table in spec.tables}
    for name in ORDERED:
        path = ordered / artifact.manifest.row_places[name]
        frequencies = used()[name]
        rows = open_places(path, tables[name]).places.rows(np.arange(len(frequencies)))
        counts = np.empty(len(rows))
        counts[rows] = frequencies
        # Classes that fall; each has rows of about equal use.
        hottest = np.sort(frequencies)[::-1]
        assert (counts[: len(rows) // 8].min()) >= hottest[len(rows) // 4]
        assert counts[len(rows) // 2 :].max() <= hottest[len(rows) // 4]
        assert len(set(counts)) > 2


@pytest.mark.parametrize("topology", ["cpu:1", "cpu:2"])
@pytest.mark.parametrize("memory", [TableMemory.MAP, TableMemory.HUGE])
def test_scores_are_those_of_rows_as_trained(
    plain: Path, ordered: Path, topology: str, memory: TableMemory
) -> None:
    as_trained = open_model(plain)
    by_frequency = open_model(ordered, topology=topology, memory=memory)
    for seed, batch in enumerate((1, 9, 33)):
        inputs = request(batch, seed)
        assert np.array_equal(scores(by_frequency, inputs), scores(as_trained, inputs))
    check_golden(by_frequency)


def test_an_id_outside_is_refused_in_the_plain_models_words(plain: Path, ordered: Path) -> None:
    inputs = request(4, 1) | {"country": np.array([9]), "country.lengths": np.array([1, 0, 0, 0])}
    inputs |= {"bought": np.array([300]), "bought.lengths": np.array([0, 0, 1, 0])}
    said = []
    for path in (plain, ordered):
        with pytest.raises(RequestError) as caught:
            open_model(path).predict(inputs)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "id 300 is outside table 'item', expected 0 to 299" in said[0]


def test_changed_and_new_rows_have_the_users_numbers(tmp_path: Path) -> None:
    publish_ordered(tmp_path / "models")
    publish(SPEC, trained(), Tower(), tmp_path / "plain")
    ids = np.array([17, 299, 300, 4, 301])
    values = torch.randn(5, 8, generator=torch.Generator().manual_seed(8))
    shop = ChangedRows(np.array([0]), torch.ones(1, 4))
    changes = {"item": ChangedRows(ids, values), "shop": shop}
    names = ("models", "plain")
    paths = [publish_delta("ordered", changes, tmp_path / name).path for name in names]
    paths.append(compact(tmp_path / "models", "ordered").path)
    models = [open_model(path) for path in paths]
    for seed in range(3):
        inputs = request(9, seed)
        inputs["bought"] = np.resize(ids, len(inputs["bought"]))
        found = [scores(model, inputs) for model in models]
        assert np.array_equal(found[0], found[1])
        assert np.array_equal(found[2], found[1])


def test_changed_rows_are_refused_by_the_users_numbers(tmp_path: Path) -> None:
    publish_ordered(tmp_path)
    values = torch.full((1, 8), float("nan"))
    for row, words in ((250, "row 250 has NaN"), (-1, "got -1"), (302, "row 302 is new")):
        changes = {"item": ChangedRows(np.array([row]), values)}
        with pytest.raises(WeightsError, match=words):
            publish_delta("ordered", changes, tmp_path)
    removed = ChangedRows(np.array([1]), torch.ones(1, 8), removed=np.array([5]))
    with pytest.raises(WeightsError, match="it has no id map"):
        publish_delta("ordered", {"item": removed}, tmp_path)


def test_trained_weights_are_compared_with_rows_where_they_lie(ordered: Path) -> None:
    weights = trained()
    assert changed_weights(open_artifact(ordered), weights_of(weights)) == {}
    weights["item"] = torch.cat([weights["item"], torch.ones(2, 8)])
    weights["item"][[11, 200]] += 1
    weights["seen"][29] += 1
    changes = changed_weights(open_artifact(ordered), weights_of(weights))
    assert changes["item"].ids.tolist() == [11, 200, 300, 301]
    assert changes["seen"].ids.tolist() == [29]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"shops": np.ones(50)}, "table 'shops': no such table"),
        ({"shop": np.ones(49)}, r"one number for each of 50 rows, got float64 \[49\]"),
        ({"shop": np.full(50, "x")}, "one number for each of 50 rows"),
        ({"shop": np.full(50, np.nan)}, "finite numbers of 0 and more"),
        ({"shop": np.full(50, -1)}, "finite numbers of 0 and more"),
    ],
)
def test_frequencies_that_fit_no_table_are_refused(
    tmp_path: Path, counts: dict[str, Frequencies], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        publish(SPEC, trained(), Tower(), tmp_path, order_rows="frequency", frequencies=counts)
