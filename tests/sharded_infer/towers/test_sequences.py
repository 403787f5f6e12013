from functools import cache

import pytest
import torch
from torch import Tensor, nn

from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.towers.program.tower_inputs import TowerInputs
from sharded_infer.towers.tower import Tower
from tests.sharded_infer.towers.sequence_towers import (
    DENSE,
    GROWING,
    LONGEST,
    TOWERS,
    WIDTH,
    inputs_of,
    seeded,
    sequences_of,
)
from tests.sharded_infer.towers.stored import Signature, load_back, read_back

SIZES = ((1, 1), (2, 2), (3, 5), (5, 2), (5, 5), (9, LONGEST))


@cache
def tower_of(name: str, precision: Precision = Precision.FP32) -> Tower:
    signature = Signature(WIDTH, DENSE, sequences_of(name))
    calibration = tuple(inputs_of(200, LONGEST, seed=1).values())
    return load_back(signature.export(seeded(name), precision, calibration), signature)


def scores_of(tower: Tower, inputs: dict[str, Tensor]) -> Tensor:
    *dense, embeddings = inputs.values()
    [score] = tower(dense, embeddings)
    return score


@pytest.mark.parametrize("name", TOWERS)
def test_a_tower_scores_batches_of_any_size_and_length_as_its_module_does(name: str) -> None:
    tower, module = tower_of(name), seeded(name)
    for batch, length in SIZES:
        inputs = inputs_of(batch, length if name in GROWING else LONGEST)
        expected = module(**inputs)
        found = scores_of(tower, inputs)
        # torch's fast kernels give NaN for a history without positions, its plain ones do not.
        defined = ~(expected.isnan() & (inputs["history_lengths"] == 0))
        assert bool(expected[:2].isfinite().all())
        torch.testing.assert_close(found[defined], expected[defined], rtol=1e-5, atol=1e-5)


BOUNDS = {Precision.BF16: 2e-2, Precision.FP16: 3e-3, Precision.INT8: 2e-2}


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("hstu", Precision.BF16),
        ("din", Precision.INT8),
        ("recurrent", Precision.INT8),
        ("target attention", Precision.FP16),
    ],
)
def test_a_tower_in_a_low_precision_scores_close_to_its_module(
    name: str, precision: Precision
) -> None:
    tower, module = tower_of(name, precision), seeded(name)
    for batch, length in ((1, 1), (40, LONGEST), (40, 4)):
        inputs = inputs_of(batch, length if name in GROWING else LONGEST)
        expected = module(**inputs)
        found = scores_of(tower, inputs)
        some = inputs["history_lengths"] > 0
        error = float((found - expected)[some].abs().max())
        # Equal scores would say that nothing ran in the precision.
        assert 0 < error < BOUNDS[precision], error


def test_a_tower_without_pooled_features_need_not_take_embeddings() -> None:
    class Sums(nn.Module):
        def forward(self, history: Tensor, history_lengths: Tensor) -> Tensor:
            return history.sum((1, 2)) + history_lengths

    signature = Signature(sequences={"history": SequenceInput(3, 9)})
    tower = load_back(signature.export(Sums()), signature)
    history, lengths = torch.randn(4, 6, 3), torch.tensor([6, 0, 1, 2])
    [score] = tower([history, lengths], torch.empty(4, 0))
    torch.testing.assert_close(score, Sums()(history, lengths))


class TwoHistories(nn.Module):
    def forward(self, **inputs: Tensor) -> Tensor:
        clicks = torch.cat([inputs["clicks"], inputs["when"], inputs["price"]], dim=2)
        attended = clicks @ inputs["views"].transpose(1, 2)
        lengths = inputs["clicks_lengths"] - inputs["views_lengths"]
        return attended.sum((1, 2)) + lengths + inputs["embeddings"].sum(1)


TWO = {"clicks": SequenceInput(4, 30, dense={"when": 1, "price": 2}), "views": SequenceInput(7, 8)}


def test_two_sequences_may_have_different_lengths() -> None:
    stored = read_back(Signature(2, sequences=TWO).export(TwoHistories()))
    for clicks, views in ((1, 1), (3, 8), (30, 2), (8, 8)):
        inputs = {
            "clicks": torch.randn(5, clicks, 4),
            "clicks_lengths": torch.full((5,), clicks),
            "when": torch.randn(5, clicks, 1),
            "price": torch.randn(5, clicks, 2),
            "views": torch.randn(5, views, 7),
            "views_lengths": torch.full((5,), views),
            "embeddings": torch.randn(5, 2),
        }
        torch.testing.assert_close(stored(*inputs.values())[0], TwoHistories()(**inputs))


class OfHistory(nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function
        self.layer, self.places = nn.Linear(9 * 4, 1), nn.Embedding(20, 4)

    def forward(self, history: Tensor, history_lengths: Tensor, embeddings: Tensor) -> Tensor:
        made: Tensor = self.function(self, history, history_lengths)  # type: ignore[operator]
        return made + embeddings[:, 0]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda s, h, n: s.layer(h.flatten(1))[:, 0], r"mat1 and mat2 shapes"),
        (
            lambda s, h, n: h.sum((1, 2)) * (2 if h.shape[1] > 3 else 1),
            r"every length of 'history' up to 9 \(set sequences.history.pad_to = \"max_length\"",
        ),
        (
            lambda s, h, n: h[:, -5:].reshape(len(h), -1).sum(1),
            r"every length of 'history' up to 9 \(set sequences.history.pad_to",
        ),
        (
            lambda s, h, n: h.sum((1, 2)) * (2 if h.shape[1] % 2 == 1 else 1),
            r"does not take every length of 'history': at 2 .*pad_to",
        ),
        (lambda s, h, n: h[:, : int(n.max())].sum((1, 2)), "a tower cannot branch on values"),
        (lambda s, h, n: h.gather(1, (n - 1)[:, None, None])[:, 0, 0], "index -1 is out of bounds"),
        (lambda s, h, n: s.places(torch.arange(h.shape[1]) + 15).sum((0, 1)) + n, "fails"),
    ],
)  # fmt: skip
def test_a_module_that_does_not_take_every_length_is_refused(function: object, words: str) -> None:
    with pytest.raises(TowerError, match=words):
        Signature(2, sequences={"history": SequenceInput(4, 9)}).export(OfHistory(function))


@pytest.mark.parametrize(
    ("sequences", "words"),
    [
        ({"history": SequenceInput(0, 9)}, "width 1 or more, got 'history' of 0"),
        ({"history": SequenceInput(4, 0)}, "'history': expected a max_length of 1 or more, got 0"),
        ({"history": SequenceInput(4, 9, dense={"user": 1})}, "two inputs have the name 'user'"),
        (
            {"history": SequenceInput(4, 9, dense={"a_ids": 1}, ids=("a",))},
            "two inputs have the name 'a_ids'",
        ),
        ({"embeddings": SequenceInput(4, 9)}, r"name 'embeddings' \(the last input has it\)"),
        (
            {"user": SequenceInput(4, 9), "user_lengths": SequenceInput(4, 9)},
            "two inputs have the name 'user'",
        ),
    ],
)
def test_inputs_that_are_none_are_refused(sequences: dict[str, SequenceInput], words: str) -> None:
    with pytest.raises(TowerError, match=words):
        TowerInputs({"user": 3}, 2, sequences).check()
