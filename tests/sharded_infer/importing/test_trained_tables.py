from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from quant.sources.checkpoint import weights_of
from sharded_infer.errors import SpecError
from sharded_infer.importing.trained_tables import resolve_spec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.torchrec_models import TABLES, Table, TorchRec

ONE = ModelSpec("one", (TableSpec("genres", rows=9, dim=4),))


def bag(mode: str, **options: object) -> dict[str, nn.Module]:
    return {"genres": nn.EmbeddingBag(9, 4, mode=mode, **options)}


def resolved(spec: ModelSpec, weights: object) -> ModelSpec:
    return resolve_spec(spec, weights_of(weights))


def with_pooling(pooling: str | None) -> ModelSpec:
    return replace(ONE, tables=(TableSpec("genres", rows=9, dim=4, pooling=pooling),))


def of_tables(*tables: Table, weighted: bool | None = None) -> ModelSpec:
    return ModelSpec(
        "rec", tuple(TableSpec(t.name, rows=t.rows, dim=t.dim, weighted=weighted) for t in tables)
    )


def test_a_pooling_that_nobody_says_is_a_sum() -> None:
    assert resolved(ONE, {"genres": torch.zeros(9, 4)}).tables[0].pooling == "sum"
    assert resolved(ONE, {"genres": nn.Embedding(9, 4)}).tables[0].pooling == "sum"
    assert resolved(with_pooling("mean"), {"genres": torch.zeros(9, 4)}).tables[0].pooling == "mean"


def test_modules_that_ignore_or_refuse_weights_say_so_in_the_spec(rec: TorchRec) -> None:
    assert resolved(ONE, bag("sum")).tables[0].weighted is None
    assert resolved(ONE, bag("mean")).tables[0].weighted is False
    table = Table("t_user", 9, 4, ("user",))
    assert resolved(of_tables(table), rec.collection([table])).tables[0].weighted is False
    # The tower pools what these look up.
    unpooled = {"t_user": nn.Embedding(9, 4)}
    for said, expected in ((None, False), (True, True)):
        assert resolved(of_tables(table, weighted=said), unpooled).tables[0].weighted is expected
    with pytest.raises(SpecError, match="table 't_user': the spec says weighted = true, its Emb"):
        resolved(of_tables(table, weighted=True), rec.collection([table]))


def test_a_weighted_mean_of_torchrec_needs_the_specs_word(rec: TorchRec) -> None:
    table = Table("t_user", 9, 4, ("user",), "MEAN")
    weighted = rec.embeddings.EmbeddingBagCollection(
        tables=rec.collection([table]).embedding_bag_configs(), is_weighted=True
    )
    with pytest.raises(SpecError, match="table 't_user': .* weighted mean, .*weighted = true"):
        resolved(of_tables(table), weighted)
    for said in (True, False):
        assert resolved(of_tables(table, weighted=said), weighted).tables[0].weighted is said


@pytest.mark.parametrize(
    ("said", "options", "words"),
    [
        ({"pooling": "sum"}, {"mode": "mean"}, "the spec says pooling 'sum', .* pools by 'mean'"),
        ({"pooling": "mean"}, {"mode": "sum"}, "the spec says pooling 'mean', .* pools by 'sum'"),
        ({}, {"mode": "max"}, "pools by 'max', which is not supported"),
        ({"padding_idx": 0}, {"mode": "sum"}, "the spec says padding_idx 0, .* has none;"),
        ({"padding_idx": 0}, {"mode": "sum", "padding_idx": 3}, "says padding_idx 0, .* has 3;"),
    ],
)
def test_what_the_module_contradicts_is_refused_by_table(
    said: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    spec = replace(ONE, tables=(replace(ONE.tables[0], **said),))
    with pytest.raises(SpecError, match=f"table 'genres'.*{words}"):
        resolved(spec, bag(**options))


def test_what_the_spec_leaves_out_is_the_modules() -> None:
    assert resolved(ONE, bag("mean", padding_idx=-1)).tables[0].padding_idx == 8
    assert resolved(ONE, bag("mean")).tables[0].padding_idx is None
    for mode in ("sum", "mean"):
        assert resolved(ONE, bag(mode)).tables[0].pooling == mode


def test_what_a_spec_leaves_out_is_taken_from_a_torchrec_collection(rec: TorchRec) -> None:
    spec = resolved(of_tables(*TABLES), rec.collection())
    assert [(t.features, str(t.pooling).upper()) for t in spec.tables] == [
        (t.features, t.pooling) for t in TABLES
    ]


def test_swapped_features_are_refused_by_table(rec: TorchRec) -> None:
    tables = [Table("t_user", 9, 4, ("user",)), Table("t_item", 9, 4, ("item",))]
    user, item = of_tables(*tables).tables
    swapped = ModelSpec(
        "rec", (replace(user, features=("item",)), replace(item, features=("user",)))
    )
    words = r"'t_user': the spec says features \['item'\].*feature_names \['user'\]"
    with pytest.raises(SpecError, match=words):
        resolved(swapped, rec.collection(tables))


def test_another_order_than_the_collections_is_refused(rec: TorchRec) -> None:
    collection = rec.collection()
    turned = of_tables(*reversed(TABLES))
    with pytest.raises(SpecError, match=r"in the order \['ad', .*in the order \['user', "):
        resolved(turned, collection)
    by_table = dict(collection.embedding_bags.items())
    assert [t.name for t in resolved(turned, by_table).tables] == ["t_ad", "t_item", "t_user"]


def test_a_feature_of_rows_is_in_a_sequence_or_has_a_pooling(rec: TorchRec) -> None:
    config = rec.configs.EmbeddingConfig(
        name="genres", num_embeddings=9, embedding_dim=4, feature_names=["genres"]
    )
    rows = rec.embeddings.EmbeddingCollection(tables=[config])
    words = r"'genres': .*EmbeddingCollection does not pool.*\[sequences\]"
    with pytest.raises(SpecError, match=words):
        resolved(ONE, rows)
    assert resolved(with_pooling("sum"), rows).tables[0].features == ("genres",)
    sequence = replace(ONE, sequences={"genres": SequenceSpec(9, features=("genres",))})
    assert resolved(sequence, rows).sequences == sequence.sequences
    bags = rec.collection([Table("genres", 9, 4, ("genres",))])
    with pytest.raises(SpecError, match="has feature 'genres' in a sequence, .* pools it"):
        resolved(sequence, bags)


def test_what_a_spec_does_not_take_may_do_what_it_likes(rec: TorchRec) -> None:
    config = rec.configs.EmbeddingConfig(
        name="history", num_embeddings=9, embedding_dim=4, feature_names=["history"]
    )
    sequences = rec.embeddings.EmbeddingCollection(tables=[config])
    most = nn.EmbeddingBag(9, 4, mode="max")
    model = nn.ModuleDict({"sequences": sequences, "most": most, **bag("mean")})
    assert resolved(ONE, model).tables[0].pooling == "mean"
