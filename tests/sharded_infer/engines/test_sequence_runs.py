from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.row_format import RowFormat
from sharded_infer.engines.model import Model, open_model
from sharded_infer.engines.sequence_runs import MOST_POSITIONS, pieces_of
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.batches import run_together

DIM = 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(DIM, DIM + 4)
        self.top = nn.Linear(DIM + 4 + DIM + 1, 1)

    def forward(
        self,
        price: Tensor,
        history: Tensor,
        history_lengths: Tensor,
        age: Tensor,
        embeddings: Tensor,
    ) -> Tensor:
        there = torch.arange(history.shape[1])[None] < history_lengths[:, None]
        logits = (history @ self.query(embeddings).unsqueeze(2)).squeeze(2) + age.squeeze(2)
        weights = torch.where(there, logits, torch.full_like(logits, -1e9)).softmax(1) * there
        pooled = (weights.unsqueeze(1) @ history).squeeze(1)
        return torch.sigmoid(self.top(torch.cat([pooled, embeddings, price], 1))).squeeze(1)


SPEC = ModelSpec(
    "ranker",
    (
        TableSpec("item", 500, DIM, features=("candidate", "history")),
        TableSpec("action", 4, 4),
    ),
    dense=DenseSpec({"price": 1}),
    sequences={
        "history": SequenceSpec(max_length=200, features=("history", "action"), dense={"age": 1})
    },
)


@pytest.fixture(scope="module")
def trained() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"item": nn.Embedding(500, DIM), "action": nn.Embedding(4, 4), "tower": Attention()}


@pytest.fixture(scope="module")
def model(trained: dict[str, nn.Module], tmp_path_factory: pytest.TempPathFactory) -> Model:
    tables = {name: trained[name] for name in ("item", "action")}
    folder = tmp_path_factory.mktemp("sequences")
    return open_model(publish(SPEC, tables, trained["tower"], folder).path)


def request_of(lengths: list[int], *, candidates: int = 1, seed: int = 0) -> ModelInput:
    """One sample for each length; or one history that several candidates share."""
    generator = np.random.default_rng(seed)
    total, samples = sum(lengths), max(len(lengths), candidates)
    arrays: dict[str, NDArray[Any]] = {
        "price": generator.random((samples, 1), np.float32),
        "candidate": generator.integers(0, 500, samples),
        "history": generator.integers(0, 500, total),
        "action": generator.integers(0, 4, total),
        "age": generator.random(total, np.float32),
        "history.lengths": np.array(lengths),
    }
    return InputPolicy(SPEC).apply(make_input(SPEC, arrays))


def scores(model: Model, *requests: ModelInput) -> NDArray[np.float32]:
    return np.concatenate([one.scores[0] for one in run_together(model, requests)])


def test_pieces_hold_like_lengths_and_few_positions() -> None:
    lengths = np.random.default_rng(0).lognormal(4, 1.2, 300).clip(1, 1000).astype(np.int64)
    pieces = pieces_of(lengths, None)
    joined = np.concatenate([piece.samples for piece in pieces])
    assert sorted(joined.tolist()) == list(range(300))
    padded = sum(len(piece.samples) * lengths[piece.samples].max() for piece in pieces)
    assert padded <= 1.5 * lengths.sum()
    for piece in pieces:
        assert len(piece.samples) * lengths[piece.samples].max() <= MOST_POSITIONS
        assert (np.diff(piece.samples) > 0).all()


def test_scores_are_those_of_the_trained_modules(
    model: Model, trained: dict[str, nn.Module]
) -> None:
    lengths = [0, 1, 3, 200, 17, 40]
    request = request_of(lengths)
    found = scores(model, request)
    values = torch.from_numpy(request.groups[0].values)
    first, expected = len(lengths), []
    for sample, length in enumerate(lengths):
        begin = first + sum(lengths[:sample])
        items = values[begin : begin + length]
        actions = values[begin + sum(lengths) : begin + sum(lengths) + length]
        rows = torch.cat([trained["item"](items), trained["action"](actions)], 1)[None]
        bits = request.groups[0].values[begin + 2 * sum(lengths) :][:length]
        ages = torch.from_numpy(bits.astype(np.uint32).view(np.float32))[None, :, None]
        embeddings = trained["item"](values[sample : sample + 1])
        price = torch.from_numpy(request.dense[0][sample : sample + 1])
        with torch.no_grad():
            expected.append(
                trained["tower"](price, rows, torch.tensor([length]), ages, embeddings).item()
            )
    # int8 rows.
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_requests_of_any_lengths_are_scored_together_as_alone(model: Model) -> None:
    lengths = np.random.default_rng(1).lognormal(3.5, 1.2, 60).clip(0, 400).astype(int).tolist()
    requests = [request_of([length], seed=seed) for seed, length in enumerate(lengths)]
    together = scores(model, *requests)
    alone = np.concatenate([scores(model, request) for request in requests])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [0, 5, 200, 350])
def test_a_shared_history_scores_as_one_sent_for_each_candidate(model: Model, length: int) -> None:
    shared = request_of([length], candidates=90)
    group = shared.groups[1]
    parts = np.split(group.values, np.cumsum(group.lengths.ravel())[:-1])
    arrays = {
        "price": shared.dense[0],
        "candidate": shared.groups[0].values,
        "history": np.tile(parts[0], 90),
        "action": np.tile(parts[1], 90),
        "age": np.tile(parts[2].astype(np.uint32).view(np.float32), 90),
        "history.lengths": np.full(90, length),
    }
    whole = InputPolicy(SPEC).apply(make_input(SPEC, arrays))
    np.testing.assert_allclose(scores(model, shared), scores(model, whole), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pad", ["left", "right"])
def test_a_tower_of_one_length_gets_all_positions(
    pad: str, trained: dict[str, nn.Module], tmp_path: Path
) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place = nn.Parameter(torch.arange(6.0)[None, :, None])

        def forward(self, history: Tensor, history_lengths: Tensor, embeddings: Tensor) -> Tensor:
            return (history * self.place).sum((1, 2)) + embeddings.sum(1)

    sequence = SequenceSpec(max_length=6, features=("history",), pad=pad, pad_to="max_length")
    table = replace(SPEC.tables[0], format=RowFormat.FP32)
    spec = ModelSpec("last", (table,), sequences={"history": sequence})
    model = open_model(publish(spec, {"item": trained["item"]}, Last(), tmp_path).path)
    found = model.predict({"candidate": [1, 1], "history": [[3, 4], [3, 4, 5, 6, 7, 8, 9]]})
    weight = trained["item"].weight.detach()  # type: ignore[union-attr]
    places = (4, 5) if pad == "left" else (0, 1)
    short = sum(place * weight[item].sum() for place, item in zip(places, (3, 4), strict=True))
    long = sum(place * weight[item].sum() for place, item in enumerate(range(4, 10)))
    expected = torch.stack([short, long]) + weight[1].sum()
    np.testing.assert_allclose(found["score"], expected.numpy(), rtol=1e-5, atol=1e-5)
