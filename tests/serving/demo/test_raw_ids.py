from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.demo.criteo import FEATURES, Vocabulary, generated_clicks
from serving.demo.model import DemoModel, model_input, train_demo
from serving.demo.raw_ids import check_unknown, hashed_texts, id_maps_of
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import no_progress
from sharded_infer.publishing.publication import publish


@pytest.fixture(scope="module")
def demo() -> DemoModel:
    return train_demo(None, 400, no_progress, raw_ids=True)


@pytest.fixture(scope="module")
def raw(demo: DemoModel, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return published(demo, tmp_path_factory.mktemp("raw"))


def published(demo: DemoModel, repository: Path) -> Model:
    samples = model_input(demo.training.select(slice(20)))
    weights, tower = demo.trained.embeddings, demo.trained.tower
    made = publish(demo.spec, weights, tower, repository, id_maps=demo.id_maps, samples=samples)
    return open_model(made.path)


def test_a_kept_category_has_its_row_and_all_others_read_row_0() -> None:
    vocabulary = Vocabulary.fit(generated_clicks(400, seed=1), min_count=8)
    maps = id_maps_of(vocabulary)
    assert list(maps) == list(FEATURES)
    for source, kept, rows in zip(maps.values(), vocabulary.kept, vocabulary.rows, strict=True):
        ((ids, places),) = source.chunks(rows)
        assert ids.tolist() == hashed_texts(kept).tolist()
        assert places.tolist() == list(range(1, rows))
        assert source.unknown is not None and source.strings == "xxh3_64"


def test_strings_score_as_their_rows_do_to_the_bit(
    demo: DemoModel, raw: Model, tmp_path: Path
) -> None:
    rows = train_demo(None, 400, no_progress)
    assert rows.held_out.texts is None and demo.held_out.texts is not None
    wanted = published(rows, tmp_path).run(model_input(rows.held_out))["score"]
    assert np.array_equal(raw.run(model_input(demo.held_out))["score"], wanted)
    # Not because ids say nothing.
    unknown = replace(demo.held_out, texts=np.full_like(demo.held_out.texts, b"0"))
    assert not np.array_equal(raw.run(model_input(unknown))["score"], wanted)


def test_the_unknown_ids_of_each_table_are_counted_for_all_passes(demo: DemoModel) -> None:
    sent = demo.held_out
    bags = {name: sent.ids[sent.present[:, n], n] for n, name in enumerate(FEATURES)}
    counted = Counter({name: 3 * int((ids == 0).sum()) for name, ids in bags.items()})
    found = check_unknown(counted, sent, passes=3)
    assert found.hash == "xxh3_64" and found.ids == 3 * sent.present.sum()
    assert found.unknown == sum(found.unknown_by_table.values()) == counted.total() > 0
    assert 0 not in found.unknown_by_table.values()
    for name in ("C3", "C9"):
        wrong = counted + Counter({name: 1})
        with pytest.raises(
            ShardedInferError,
            match=f"table '{name}': {counted[name]} of the ids sent .* counted {wrong[name]} unk",
        ):
            check_unknown(wrong, sent, passes=3)
