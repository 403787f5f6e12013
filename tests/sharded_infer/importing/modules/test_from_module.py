"""Trained modules that are cut at their embeddings: specs, reports and refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sharded_infer import (
    ModelSpec,
    OutputGate,
    SequenceSpec,
    ShardedInferError,
    from_module,
    open_model,
    publish,
)
from sharded_infer.errors import GateError, SpecError
from tests.sharded_infer.importing.modules.architectures import ARCHITECTURES, LENGTH


def imported(name: str) -> Any:
    case = ARCHITECTURES[name]()
    return from_module(case.module.eval(), case.inputs, name=name, **case.options)


def features(spec: ModelSpec) -> dict[str, tuple[str, ...]]:
    return {table.name: table.features for table in spec.tables}


def test_columns_of_a_joint_table_are_features_with_its_offsets() -> None:
    spec = imported("deepfm_named_columns").spec
    names = ("user", "city", "item", "hour")
    assert features(spec) == {"embedding_embedding": names, "linear_fc_embedding": names}
    steps = {"city": (("add", 11),), "item": (("add", 16),), "hour": (("add", 39),)}
    assert [table.id_steps for table in spec.tables] == [steps, steps]
    assert (spec.dense.inputs, spec.sequences) == ({}, {})


def test_columns_of_a_float_matrix_are_ids_and_numbers() -> None:
    spec = imported("dcn").spec
    assert features(spec)["linear_dict_hour"] == features(spec)["embedding_dict_hour"] == ("hour",)
    assert spec.dense.inputs == {"age": 1, "price": 1}
    assert imported("dcn_unnamed_columns").spec.dense.inputs == {"x_4_5": 2}


def test_arithmetic_on_ids_becomes_steps_of_their_tables() -> None:
    spec = imported("quotient_remainder").spec
    hashed = (("multiply", 31), ("add", 7), ("remainder", 16))
    assert {table.name: dict(table.id_steps) for table in spec.tables} == {
        "quotients": {"user": (("divide", 10),)},
        "remainders": {"user": (("remainder", 10),)},
        "hashed": {"item": hashed},
        # A table holds a feature once.
        "hashed_2": {"item": (("multiply", 17), ("add", 3), ("remainder", 16))},
        "clamped": {"item": (("at_least", 0), ("at_most", 11))},
    }


def test_histories_are_sequences_whose_ids_a_mask_reads() -> None:
    spec = imported("din").spec
    length = {"max_length": LENGTH, "pad_to": "max_length"}
    assert spec.sequences == {
        "items": SequenceSpec(features=("items",), ids=("items",), **length),
        "categories": SequenceSpec(features=("categories",), **length),
    }
    assert [table.padding_idx for table in spec.tables] == [0, 0, None]
    assert spec.tower.user_inputs == ("items", "categories", "user")


def test_bags_are_pooled_by_lookups_unless_torch_takes_their_maximum() -> None:
    spec = imported("dlrm").spec
    assert [table.pooling for table in spec.tables] == ["sum", "mean", "sum", "sum"]
    assert list(spec.sequences) == ["sparse_3"]


@pytest.mark.rest
def test_a_history_may_be_short_where_padding_is_a_row_of_zeros() -> None:
    for name, pad in (("din", "right"), ("sasrec", "left"), ("bert4rec", "left")):
        first = next(iter(imported(name).spec.sequences.values()))
        assert (first.shortest, first.pad) == (0, pad)
    # Its row 0 is one of an item.
    assert imported("bst").spec.sequences["history"].shortest == LENGTH


@pytest.mark.rest
def test_a_short_history_scores_as_a_padded_one(tmp_path: Any) -> None:
    case = ARCHITECTURES["sasrec"]()
    published = publish(case.module.eval(), case.inputs, tmp_path, name="sasrec")
    history, candidates = (tensor[:1].numpy() for tensor in case.inputs)
    model = open_model(published.path)
    padded = model.predict({"log_seqs": history, "candidates": candidates})["score"]
    short = model.predict({"log_seqs": history[history != 0][None], "candidates": candidates})
    assert 0 in history
    np.testing.assert_array_equal(short["score"], padded)


def test_outputs_have_the_names_that_the_module_returns() -> None:
    outputs = {name: imported(name).spec.tower.outputs for name in ("mmoe", "ple", "esmm", "fm")}
    assert outputs == {
        "mmoe": ("score",),
        "ple": ("score_0", "score_1"),
        "esmm": ("ctr", "ctcvr"),
        "fm": ("score",),
    }


def test_scores_that_are_no_probabilities_have_a_relative_gate() -> None:
    assert imported("fm").spec.gate.outputs is None
    assert imported("sasrec").spec.gate.outputs == {"score": OutputGate(max_relative_diff=0.1)}


def test_a_report_names_lines_and_what_stays_in_the_tower() -> None:
    report = imported("bert4rec").report
    [table] = report.tables
    assert (table.table, table.features) == ("token", {"tokens": "sequence with ids"})
    assert "architectures.py" in table.line and "self.token(tokens)" in table.line
    assert [line for line in str(report).splitlines() if "'token'" in line] == [
        "look at: the tower also multiplies all rows of 'token', which it keeps in fp32"
    ]
    [kept] = imported("bst").report.left
    assert (kept.weight, kept.reason) == ("position", "positions, no ids of an input")


class Scaled(nn.Module):
    """A table and a line of arithmetic, to be broken by each test."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100_000, 4)

    def forward(self, item: Tensor, price: Tensor) -> Tensor:
        """Scores `[B]`."""
        return self.table(item).sum(1) * price


ITEMS, PRICES = torch.arange(6), torch.rand(6)


def refused(module: nn.Module, inputs: Any = (ITEMS, PRICES), **options: Any) -> str:
    with pytest.raises(ShardedInferError) as caught:
        from_module(module.eval(), inputs, **options)
    return str(caught.value)


def test_ids_that_other_inputs_change_are_refused_with_their_line() -> None:
    class Shifted(Scaled):
        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            return super().forward(item + (price > 2).long(), price)

    message = refused(Shifted())
    assert "table 'table' [100000, 4]: its ids are computed from the inputs" in message
    assert "test_from_module.py" in message and "self.table(item)" in message


class Bags(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 4, padding_idx=3, **options)

    def forward(self, tags: Tensor) -> Tensor:
        """Scores `[B]`."""
        return self.bag(tags).sum(1)


TAGS = torch.arange(24).reshape(6, 4) + 4


def test_a_bag_leaves_its_padding_out_though_the_example_has_none(tmp_path: Any) -> None:
    module = Bags(mode="mean").eval()
    module.bag.weight.data[3] = 1.0
    published = publish(module, TAGS, tmp_path, name="bags")
    tags = TAGS.clone()
    tags[:, 2:] = 3
    expected = module(tags).detach().numpy()
    found = open_model(published.path).predict({"tags": tags.numpy()})["score"]
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())
    assert "a bag with padding_idx whose ids" in refused(Bags(mode="max"), TAGS)


def test_a_column_of_ids_and_numbers_is_sent_as_both(tmp_path: Any) -> None:
    class Both(Scaled):
        def forward(self, item: Tensor) -> Tensor:
            return super().forward(item.long(), item)

    module = Both().eval()
    values = torch.rand(6) * 50
    published = publish(module, values, tmp_path, name="both")
    inputs = {"item": values.long().numpy(), "item_numbers": values.numpy()}
    found = open_model(published.path).predict(inputs)["score"]
    expected = module(values).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize(
    "changed",
    [lambda item: (item.int() * 70_001).remainder(97), lambda item: item.to(torch.uint8).long()],
    ids=["products of 32 bits", "casts to 8 bits"],
)
def test_ids_that_wrap_around_in_few_bits_are_refused(changed: Any) -> None:
    class Wrapped(Scaled):
        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            return super().forward(changed(item), price)

    assert "its ids are computed from the inputs" in refused(Wrapped())


def test_dropout_that_is_always_on_is_refused_with_its_line() -> None:
    class Dropping(Scaled):
        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            return functional.dropout(super().forward(item, price), 0.5)

    message = refused(Dropping())
    assert "dropout is always on" in message and "functional.dropout(super()" in message


def test_rows_computed_from_a_parameter_are_a_table(tmp_path: Any) -> None:
    class Normed(Scaled):
        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            rows = functional.normalize(self.table.weight)[item] + self.table(item)
            return rows.sum(1) * price

    module = Normed().eval()
    found = from_module(module, (ITEMS, PRICES))
    assert features(found.spec) == {"table_weight_div": ("item",), "table": ("item",)}
    read = found.weights.read("table_weight_div", 0, 100)
    torch.testing.assert_close(read, functional.normalize(module.table.weight[:100]).detach())
    publish(found.spec, found.weights, found.tower, tmp_path)


@pytest.mark.rest
def test_time_first_histories_and_wrapped_modules_are_cut(tmp_path: Any) -> None:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.gru = nn.Embedding(50, 4), nn.GRU(4, 4)

        def forward(self, history: Tensor) -> Tensor:
            return self.gru(self.table(history.t()))[1][0].sum(1)

    module = nn.DataParallel(TimeFirst().half().float()).eval()
    found = from_module(module, TAGS)
    assert features(found.spec) == {"table": ("history",)}
    publish(found.spec, found.weights, found.tower, tmp_path)


def test_modules_in_half_precision_are_scored_in_it(tmp_path: Any) -> None:
    module = Scaled().bfloat16().eval()
    published = publish(module, (ITEMS, PRICES.bfloat16()), tmp_path, name="scaled")
    assert "scores within 0 of the largest" in published.compared


@pytest.mark.rest
def test_a_padding_of_minus_one_is_masked(tmp_path: Any) -> None:
    class Masked(Scaled):
        def forward(self, items: Tensor, items_lengths: Tensor) -> Tensor:
            rows = self.table(items.clamp(min=0)) * (items != -1).unsqueeze(2)
            return rows.sum((1, 2)) / items_lengths

    items = TAGS.masked_fill(TAGS % 5 == 0, -1)
    lengths = (items >= 0).sum(1)
    module = Masked().eval()
    published = publish(module, (items, lengths), tmp_path, name="masked")
    inputs = {"items": items.numpy(), "items_lengths": lengths.float().numpy()}
    found = open_model(published.path).predict(inputs)["score"]
    expected = module(items, lengths).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_random_scores_are_refused_with_their_line() -> None:
    class Random(Scaled):
        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            return super().forward(item, price) + torch.rand_like(price)

    message = refused(Random())
    assert "draws random numbers" in message and "torch.rand_like(price)" in message


def test_scores_of_all_pairs_of_a_batch_are_refused() -> None:
    class Pairs(Scaled):
        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            return self.table(item) @ self.table(item).T

    message = refused(Pairs(), (ITEMS, PRICES))
    assert "output 'score'" in message and "a size that is the batch" in message


def test_a_module_that_changes_a_buffer_is_refused_by_name() -> None:
    class Counting(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(item, price) * self.calls

    assert "the module changes its buffer 'calls' when it is called" in refused(Counting())


def test_a_branch_on_values_is_refused_with_its_line() -> None:
    class Branching(Scaled):
        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            if price.sum() > 3:
                return super().forward(item, price)
            return price

    message = refused(Branching())
    assert "torch cannot export the module" in message and "if price.sum() > 3:" in message


def test_a_module_without_lookups_is_refused() -> None:
    with pytest.raises(SpecError, match="Linear looks up no embeddings by ids of its inputs"):
        from_module(nn.Linear(2, 1), torch.rand(3, 2))


def test_inputs_that_the_module_does_not_take_are_refused() -> None:
    assert "does not take them: missing a required argument: 'price'" in refused(Scaled(), ITEMS)
    assert "'price': expected [B, ...]" in refused(Scaled(), (ITEMS, PRICES[:4]))
    assert "cannot be called on the example (submodule 'table'" in refused(
        Scaled(), (ITEMS + 200_000, PRICES)
    )
    assert "no method 'predict'" in refused(Scaled(), method="predict")
    case = ARCHITECTURES["fm"]()
    assert "columns of 'x': expected 4 names, got 2" in refused(
        case.module, case.inputs, columns=("a", "b")
    )
    assert "'a' names columns that are apart" in refused(
        case.module, case.inputs, columns=("a", "b", "a", "c")
    )


def test_a_single_row_is_an_example(tmp_path: Any) -> None:
    published = publish(
        Scaled().eval(), (ITEMS[:1], PRICES[:1]), tmp_path, name="scaled", note="one row"
    )
    assert "compared with the trained module on" in published.compared
    row = {"item": [3], "price": [0.5]}
    assert open_model(published.path).predict(row)["score"].shape == (1,)


def test_a_squeezed_batch_of_one_is_scored_as_a_batch(tmp_path: Any) -> None:
    class Squeezed(Scaled):
        def forward(self, item: Tensor, price: Tensor) -> Tensor:
            return (self.table(item).sum(1, keepdim=True) * price.unsqueeze(1)).squeeze()

    module = Squeezed().eval()
    published = publish(module, (ITEMS, PRICES), tmp_path, name="squeezed")
    expected = module(ITEMS, PRICES).detach().numpy()
    inputs = {"item": ITEMS[:1].numpy(), "price": PRICES[:1].numpy()}
    found = open_model(published.path).predict(inputs)["score"]
    np.testing.assert_allclose(found, expected[:1], atol=0.05)


class Doubled(nn.Module):
    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Other scores than the tower's."""
        return {name: 2 * score for name, score in self.tower(**inputs).items()}


def test_a_version_whose_scores_are_not_the_modules_is_not_published(tmp_path: Any) -> None:
    found = from_module(Scaled().eval(), (ITEMS, PRICES), name="scaled")
    with pytest.raises(GateError, match="output 'score' differs from the trained module's by"):
        publish(
            found.spec, found.weights, Doubled(found.tower), tmp_path, calibration=found.samples
        )
    assert not list(tmp_path.glob("scaled/[0-9]*"))
