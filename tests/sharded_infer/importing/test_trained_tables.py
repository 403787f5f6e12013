from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from kernels.row_format import RowFormat
from quant.sources.checkpoint import weights_of
from sharded_infer.errors import SpecError
from sharded_infer.importing.trained_tables import resolve_spec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.torchrec_models import TABLES, Table, TorchRec, torchrec

ONE = ModelSpec("one", (TableSpec("genres", rows=9, dim=4),))


@pytest.fixture
def rec() -> Iterator[TorchRec]:
    with torchrec() as parts:
        yield parts


def bag(mode: str, **options: object) -> dict[str, nn.Module]:
    return {"genres": nn.EmbeddingBag(9, 4, mode=mode, **options)}


def resolved(spec: ModelSpec, weights: object) -> ModelSpec:
    return resolve_spec(spec, weights_of(weights))


def with_pooling(pooling: str | None) -> ModelSpec:
    return replace(ONE, tables=(TableSpec("genres", rows=9, dim=4, pooling=pooling),))


def of_tables(*tables: Table, **changed: object) -> ModelSpec:
    return ModelSpec(
        "rec", tuple(TableSpec(t.name, rows=t.rows, dim=t.dim, **changed) for t in tables)
    )


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_pooling_that_the_spec_leaves_out_is_the_modules(mode: str) -> None:
    assert resolved(ONE, bag(mode)).tables[0].pooling == mode


def test_a_pooling_that_nobody_says_is_a_sum() -> None:
    assert resolved(ONE, {"genres": torch.zeros(9, 4)}).tables[0].pooling == "sum"
    assert resolved(ONE, {"genres": nn.Embedding(9, 4)}).tables[0].pooling == "sum"
    assert resolved(with_pooling("mean"), {"genres": torch.zeros(9, 4)}).tables[0].pooling == "mean"


def test_modules_that_ignore_or_refuse_weights_say_so_in_the_spec(rec: TorchRec) -> None:
    assert resolved(ONE, bag("sum")).tables[0].weighted is None
    assert resolved(ONE, bag("mean")).tables[0].weighted is False
    table = Table("t_user", 9, 4, ("user",))
    plain = resolved(of_tables(table), rec.collection([table])).tables[0]
    assert plain.weighted is False
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


@pytest.mark.parametrize(("said", "mode"), [("sum", "mean"), ("mean", "sum")])
def test_another_pooling_than_the_modules_is_refused_by_table(said: str, mode: str) -> None:
    with pytest.raises(
        SpecError,
        match=f"table 'genres': the spec says pooling '{said}', .* pools by '{mode}'",
    ):
        resolved(with_pooling(said), bag(mode))


def test_a_maximum_is_said_not_to_be_supported() -> None:
    with pytest.raises(SpecError, match="table 'genres'.*pools by 'max', which is not supported"):
        resolved(ONE, bag("max"))


def test_a_padding_that_the_spec_leaves_out_is_the_modules() -> None:
    assert resolved(ONE, bag("mean", padding_idx=-1)).tables[0].padding_idx == 8
    assert resolved(ONE, bag("mean")).tables[0].padding_idx is None


@pytest.mark.parametrize(("padding", "said"), [(None, "none"), (3, "3")])
def test_another_padding_than_the_modules_is_refused_by_table(
    padding: int | None, said: str
) -> None:
    spec = replace(ONE, tables=(replace(ONE.tables[0], padding_idx=0),))
    with pytest.raises(SpecError, match=f"'genres': the spec says padding_idx 0, .* has {said};"):
        resolved(spec, bag("sum", padding_idx=padding))


def test_modules_deep_in_a_model_are_found_by_their_keys() -> None:
    model = nn.ModuleDict({"tables": nn.ModuleDict(bag("mean"))})
    spec = replace(ONE, tables=(replace(ONE.tables[0], weights="tables.genres.weight"),))
    assert resolved(spec, model).tables[0].pooling == "mean"
    assert resolved(spec, {"tables": nn.ModuleDict(bag("mean"))}).tables[0].pooling == "mean"


def test_what_a_spec_leaves_out_is_taken_from_a_torchrec_collection(rec: TorchRec) -> None:
    spec = resolved(of_tables(*TABLES), rec.collection())
    assert [(t.features, str(t.pooling).upper()) for t in spec.tables] == [
        (t.features, t.pooling) for t in TABLES
    ]


def test_another_pooling_than_the_collections_is_refused(rec: TorchRec) -> None:
    with pytest.raises(SpecError, match=r"'t_item': the spec says pooling 'sum'.*pools by 'mean'"):
        resolved(of_tables(*TABLES, pooling="sum"), rec.collection())


def test_swapped_features_are_refused_by_table(rec: TorchRec) -> None:
    tables = [Table("t_user", 9, 4, ("user",)), Table("t_item", 9, 4, ("item",))]
    spec = of_tables(*tables)
    swapped = replace(
        spec,
        tables=tuple(
            replace(table, features=names)
            for table, names in zip(spec.tables, (("item",), ("user",)), strict=True)
        ),
    )
    with pytest.raises(
        SpecError, match=r"'t_user': the spec says features \['item'\].*feature_names \['user'\]"
    ):
        resolved(swapped, rec.collection(tables))


def test_swapped_weights_are_refused_by_table(rec: TorchRec) -> None:
    tables = [Table("t_user", 9, 4, ("user",)), Table("t_item", 9, 4, ("item",))]
    spec = ModelSpec(
        "rec",
        (
            TableSpec("t_user", 9, 4, features=("user",), weights="embedding_bags.t_item.weight"),
            TableSpec("t_item", 9, 4, features=("item",), weights="embedding_bags.t_user.weight"),
        ),
    )
    with pytest.raises(SpecError, match="table 't_user': the spec says features"):
        resolved(spec, rec.collection(tables))


def test_another_order_than_the_collections_is_refused(rec: TorchRec) -> None:
    collection = rec.collection()
    turned = of_tables(*reversed(TABLES))
    with pytest.raises(SpecError, match=r"in the order \['ad', .*in the order \['user', "):
        resolved(turned, collection)
    by_table = dict(collection.embedding_bags.items())
    assert [t.name for t in resolved(turned, by_table).tables] == ["t_ad", "t_item", "t_user"]


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.int8, RowFormat.INT8),
        (torch.quint4x2, RowFormat.INT4),
        (torch.quint2x4, RowFormat.INT2),
    ],
    ids=str,
)
def test_the_row_format_of_a_quantized_collection_is_taken(
    dtype: torch.dtype, stored: RowFormat, rec: TorchRec
) -> None:
    model = rec.quantized(rec.model("DLRM"), dtype)
    collection = model.sparse_arch.embedding_bag_collection
    assert {t.format for t in resolved(of_tables(*TABLES), collection).tables} == {stored}


def test_a_feature_of_rows_is_in_a_sequence_or_has_a_pooling(rec: TorchRec) -> None:
    config = rec.configs.EmbeddingConfig(
        name="genres", num_embeddings=9, embedding_dim=4, feature_names=["genres"]
    )
    rows = rec.embeddings.EmbeddingCollection(tables=[config])
    with pytest.raises(
        SpecError, match=r"'genres': .*EmbeddingCollection does not pool.*\[sequences\]"
    ):
        resolved(ONE, rows)
    assert resolved(with_pooling("sum"), rows).tables[0].features == ("genres",)
    sequence = replace(ONE, sequences={"genres": SequenceSpec(9, features=("genres",))})
    assert resolved(sequence, rows).sequences == sequence.sequences
    bags = rec.collection([Table("genres", 9, 4, ("genres",))])
    with pytest.raises(SpecError, match="has feature 'genres' in a sequence, .* pools it"):
        resolved(sequence, bags)


def test_feature_processors_are_refused(rec: TorchRec) -> None:
    collection = rec.collection()
    collection._feature_processors = nn.ModuleDict()
    with pytest.raises(SpecError, match="changes features before their lookup"):
        resolved(of_tables(*TABLES), collection)


def test_what_a_spec_does_not_take_may_do_what_it_likes(rec: TorchRec) -> None:
    config = rec.configs.EmbeddingConfig(
        name="history", num_embeddings=9, embedding_dim=4, feature_names=["history"]
    )
    model = nn.ModuleDict(
        {
            "sequences": rec.embeddings.EmbeddingCollection(tables=[config]),
            "most": nn.EmbeddingBag(9, 4, mode="max"),
            **bag("mean"),
        }
    )
    assert resolved(ONE, model).tables[0].pooling == "mean"
