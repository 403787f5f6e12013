"""Towers whose scores depend on padding, and towers without a score of short histories."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from serving.protocol.readers.input_reader import InputReader
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import GateError, RequestError, TowerError
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import GateSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.requests_by_chance import serialized

SPEC = ModelSpec(
    "watched",
    (TableSpec("item", rows=50, dim=4, features=("candidate", "seen")),),
    sequences={"history": SequenceSpec(32, ("seen",))},
    gate=GateSpec(1e6),
)
Pooling = Callable[[Tensor, Tensor], Tensor]


class Attention(nn.Module):
    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, history: Tensor, history_lengths: Tensor, embeddings: Tensor) -> Tensor:
        mask = (torch.arange(history.shape[1]) < history_lengths[:, None]).float()
        weight = torch.sigmoid(torch.einsum("bld,bd->bl", history, embeddings)) * mask
        pooled = self.pooling(history * weight[:, :, None], history_lengths)
        return torch.sigmoid((pooled * embeddings).sum(1) - 3)


def by_length(rows: Tensor, lengths: Tensor) -> Tensor:
    return rows.sum(1) / lengths.clamp(min=1)[:, None]


def last_row(rows: Tensor, lengths: Tensor) -> Tensor:
    last = (lengths - 1)[:, None, None].expand(-1, 1, rows.shape[2])
    return rows.gather(1, last)[:, 0]


def third_last(rows: Tensor, lengths: Tensor) -> Tensor:
    return last_row(rows, lengths - 2)


def sixth(rows: Tensor, _: Tensor) -> Tensor:
    return rows[:, 5]


def in_places(rows: Tensor, _: Tensor) -> Tensor:
    return rows.sum(1) * torch.ones(20)[torch.arange(rows.shape[1])].sum()


def published(spec: ModelSpec, pooling: Pooling, folder: Path) -> Model:
    torch.manual_seed(0)
    weights = {"item": nn.Embedding(50, 4)}
    return open_model(publish(spec, weights, Attention(pooling), folder).path)


def with_history(**changed: object) -> ModelSpec:
    return replace(SPEC, sequences={"history": replace(SPEC.sequences["history"], **changed)})


@pytest.mark.parametrize(
    ("pooling", "precision"),
    [
        (lambda rows, _: rows.sum(1) / rows.shape[1], Precision.FP32),
        (lambda rows, _: -(rows != 0).float().amin(1), Precision.FP32),
        (lambda rows, _: rows.mean(1), Precision.TF32),
        (lambda rows, _: rows.mean(1), Precision.BF16),
    ],
    ids=["size", "least", "mean in tf32", "mean in bf16"],
)
def test_a_tower_whose_scores_depend_on_the_padding_is_refused_and_told_so(
    pooling: Pooling, precision: Precision, tmp_path: Path
) -> None:
    tower = TowerSpec(precision=precision)
    with pytest.raises(GateError, match=r"padding, by .*'history' is padded .*pad_to"):
        published(replace(SPEC, tower=tower), pooling, tmp_path)
    published(replace(with_history(pad_to="max_length"), tower=tower), pooling, tmp_path)
    published(replace(SPEC, tower=tower), by_length, tmp_path)


@pytest.mark.parametrize(
    ("pooling", "words"),
    [
        (third_last, "'history' has length 2, .* length 3: set sequences.history.min_length = 3$"),
        (sixth, "'history' has length 5, .* length 6: set sequences.history.min_length = 6$"),
        (
            lambda rows, lengths: rows[torch.arange(len(rows)), lengths - 3],
            "index -2 is out of .* length 2, .* length 3: set sequences.history.min_length = 3$",
        ),
        (
            lambda rows, _: rows[:, torch.tensor([-6])][:, 0],
            "'history' has length 5, .* length 6: set sequences.history.min_length = 6$",
        ),
        (
            lambda rows, _: rows[:, 25],
            "'history' has length 25, .* length 26: set sequences.history.min_length = 26$",
        ),
        (
            in_places,
            "'history' has length 32, .* length 20: set sequences.history.max_length = 20$",
        ),
        (
            lambda rows, lengths: sixth(rows, lengths) + in_places(rows, lengths),
            "min_length = 6, where 'history' has length 32, .*max_length = 20$",
        ),
        (
            lambda rows, lengths: last_row(rows, lengths + 1),
            "; it fails at every length tried, from 1 to 32$",
        ),
    ],
)
def test_lengths_at_which_a_tower_fails_are_named_with_those_at_which_it_does_not(
    pooling: Pooling, words: str, tmp_path: Path
) -> None:
    with pytest.raises(TowerError, match=words):
        published(with_history(min_length=1), pooling, tmp_path)


def test_a_tower_whose_scores_depend_on_padding_near_the_longest_length_is_refused(
    tmp_path: Path,
) -> None:
    def counted(rows: Tensor, _lengths: Tensor) -> Tensor:
        return rows.sum(1) + (torch.arange(rows.shape[1]) >= 600).float().sum()

    with pytest.raises(GateError, match=r"padding, by .*'history' is padded .*pad_to"):
        published(with_history(max_length=640), counted, tmp_path)


@pytest.mark.parametrize("user_inputs", [(), ("history",)], ids=["own", "user's"])
def test_a_tower_without_a_score_of_empty_histories_says_min_length(
    user_inputs: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(TowerError, match=r"'history' has length 0, .*history\.min_length = 1"):
        published(SPEC, last_row, tmp_path)
    spec = with_history(min_length=2)
    spec = replace(spec, tower=TowerSpec(user_inputs=user_inputs))
    model = published(spec, last_row, tmp_path)
    reader = InputReader(spec, max_batch=100)
    ids = np.arange(6)
    good = {"candidate": np.arange(17), "seen": ids[None]}
    alone = model.predict({"candidate": np.arange(1), "seen": ids[None]})["score"]
    # 17 samples are padded.
    assert model.predict(good)["score"][0] == pytest.approx(alone[0], rel=1e-5)
    assert reader.read_message(serialized(good)).batch_size == 17
    for seen, words in (
        ({"seen": ids[:1, None]}, "input 'seen', sample 0: 1 long, expected at least 2"),
        (
            {"seen": ids[:5], "seen.lengths": np.array([2, 3, 0])},
            "input 'seen', sample 2: 0 long, expected at least 2",
        ),
        ({}, r"input 'seen' is missing: sequence 'history' has at least 2 ids \(min_length\)"),
    ):
        with pytest.raises(RequestError, match=words):
            reader.read_message(serialized({"candidate": np.arange(3), **seen}))
    with pytest.raises(ValueError, match="min_length: expected at most max_length, 32, got 33"):
        with_history(min_length=33)
