"""Towers that get the ids of a history, and mask by them."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.row_format import RowFormat
from kernels.sequences.user_states import UserStates
from sharded_infer.engines.model import Model, open_model
from sharded_infer.engines.user_cache import UserCache
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.batches import run_together
from tests.support.processor_classes import can_run, limiting_variables

ROWS, DIM, LONGEST = 60, 8, 20
# Int8 towers have no narrower product.
WIDE = 64
SEQUENCE = SequenceSpec(LONGEST, ("history", "action"), {"age": 1}, ids=("history", "action"))
SPEC = ModelSpec(
    "masked",
    (
        # What these do to ids shows in the rows alone.
        TableSpec(
            "item", ROWS, DIM, features=("candidate", "history"), out_of_range="modulo",
            padding_idx=0, format=RowFormat.FP32,
        ),
        TableSpec("action", 5, 4, out_of_range="ignore", format=RowFormat.FP32),
    ),
    DenseSpec({"price": 1}),
    sequences={"history": SEQUENCE},
)  # fmt: skip
LENGTHS = (0, 1, 3, LONGEST, LONGEST + 7, 8, 9)


class Masked(nn.Module):
    """Histories without id 0; rows of wrapped items, and those of action 7, weigh otherwise."""

    def __init__(self, pooling: str) -> None:
        super().__init__()
        self.pooling = pooling
        self.rows = nn.Linear(DIM + 5, DIM)
        self.hidden, self.deep = nn.Linear(4 * DIM, WIDE), nn.Linear(WIDE, WIDE)
        self.weight = nn.Linear(WIDE, 1)
        self.top = nn.Linear(2 * DIM + 1, 1)

    def forward(
        self,
        price: Tensor,
        history: Tensor,
        history_lengths: Tensor,
        age: Tensor,
        history_ids: Tensor,
        action_ids: Tensor,
        embeddings: Tensor,
    ) -> Tensor:
        shown = history_ids != 0
        scale = torch.where(history_ids >= ROWS, 0.5, 1.0) + action_ids.eq(7).float()
        rows = self.rows(torch.cat([history, age], 2)) * scale.unsqueeze(2)
        pooled = getattr(self, f"_{self.pooling}")(rows, shown, history_ids, embeddings)
        return torch.sigmoid(self.top(torch.cat([pooled, embeddings, price], 1))).squeeze(1)

    def _largest(self, rows: Tensor, shown: Tensor, _ids: Tensor, _candidate: Tensor) -> Tensor:
        largest = rows.masked_fill(~shown.unsqueeze(2), -1e4).amax(1)
        return largest * shown.any(1, keepdim=True)

    def _target(self, rows: Tensor, shown: Tensor, _ids: Tensor, candidate: Tensor) -> Tensor:
        query = candidate.unsqueeze(1).expand_as(rows)
        pairs = torch.cat([query, rows, query - rows, query * rows], 2)
        hidden = torch.relu(self.deep(torch.relu(self.hidden(pairs))))
        logits = self.weight(hidden).squeeze(2)
        weights = logits.masked_fill(~shown, -1e9).softmax(1) * shown
        return (weights.unsqueeze(1) @ rows).squeeze(1)

    def _attention(self, rows: Tensor, shown: Tensor, ids: Tensor, _candidate: Tensor) -> Tensor:
        # Keys that are hidden add nothing to a softmax of at least one more.
        mask = torch.zeros(shown.shape).masked_fill(~shown, -1e9)[:, None, None, :]
        heads = rows.view(*rows.shape[:2], 2, DIM // 2).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        same = (ids.unsqueeze(1) == ids.unsqueeze(2)).float().sum(2)
        mixed = mixed.transpose(1, 2).flatten(2) / same.clamp(min=1).unsqueeze(2)
        return (mixed * shown.unsqueeze(2)).sum(1) / shown.sum(1, keepdim=True).clamp(min=1)


POOLINGS = ("largest", "target", "attention")


def trained(pooling: str) -> dict[str, Any]:
    torch.manual_seed(3)
    item = nn.Embedding(ROWS, DIM, padding_idx=0)
    return {"item": item, "action": nn.Embedding(5, 4), "tower": Masked(pooling)}


def published(
    spec: ModelSpec, modules: dict[str, Any], folder: Path, *, samples: Any = None
) -> Model:
    weights = {name: modules[name] for name in ("item", "action")}
    return open_model(publish(spec, weights, modules["tower"], folder, samples=samples).path)


def with_history(**changed: object) -> ModelSpec:
    return replace(SPEC, sequences={"history": replace(SEQUENCE, **changed)})


def request_of(lengths: Sequence[int], *, candidates: int = 1, seed: int = 0) -> dict[str, Any]:
    """A sample of each length; or candidates that share the history of one."""
    generator = np.random.default_rng(seed)
    total, samples = sum(lengths), max(len(lengths), candidates)
    return {
        "price": generator.random((samples, 1), np.float32),
        "candidate": generator.integers(1, ROWS, samples),
        # Zeros, ids of rows, and ids that are wrapped.
        "history": generator.integers(0, 2 * ROWS, total) * (generator.random(total) < 0.7),
        "action": generator.choice([0, 1, 4, 7], total),
        "age": generator.random(total, np.float32),
        "history.lengths": np.array(lengths),
    }


def expected_scores(
    spec: ModelSpec, modules: dict[str, Any], request: dict[str, Any]
) -> NDArray[np.float32]:
    """The trained modules on each sample alone, padded to the longest length on the right."""
    sequence, scores = spec.sequences["history"], []
    lengths = request["history.lengths"].tolist()
    for sample, candidate in enumerate(request["candidate"].tolist()):
        at = sample if len(lengths) > 1 else 0
        begin, length = sum(lengths[:at]), lengths[at]
        kept = min(length, LONGEST)
        begin += length - kept if sequence.keep == "last" else 0
        ids, actions, ages = (
            torch.from_numpy(np.pad(request[name][begin : begin + kept], (0, LONGEST - kept)))
            for name in ("history", "action", "age")
        )
        with torch.no_grad():
            rows = torch.zeros(1, LONGEST, DIM + 4)
            rows[0, :kept, :DIM] = modules["item"](ids[:kept] % ROWS)
            rows[0, :kept, DIM:] = modules["action"](actions[:kept] % 5)
            rows[0, :kept][ids[:kept] % ROWS == 0, :DIM] = 0
            rows[0, :kept][actions[:kept] >= 5, DIM:] = 0
            scores.append(
                modules["tower"](
                    torch.from_numpy(request["price"][sample : sample + 1]),
                    rows,
                    torch.tensor([kept]),
                    ages[None, :, None],
                    ids[None],
                    actions[None],
                    modules["item"](torch.tensor([candidate])),
                ).item()
            )
    return np.array(scores, np.float32)


def batch_scores(model: Model, *requests: dict[str, Any]) -> NDArray[np.float32]:
    policy = InputPolicy(model.spec)
    inputs = [policy.apply(make_input(model.spec, request)) for request in requests]
    return np.concatenate([result.scores[0] for result in run_together(model, inputs)])


def check(model: Model, modules: dict[str, Any]) -> None:
    """Compares scores of requests alone, together, and of candidates that share a history."""
    requests = [
        request_of(LENGTHS),
        *(request_of([length], seed=9 + length) for length in LENGTHS),
        *(request_of([length], candidates=5, seed=50 + length) for length in LENGTHS),
    ]
    expected = [expected_scores(model.spec, modules, request) for request in requests]
    for request, scores in zip(requests, expected, strict=True):
        found = model.predict(request)["score"]
        np.testing.assert_allclose(found, scores, rtol=1e-4, atol=1e-5)
    for _ in range(2):
        together = batch_scores(model, *requests)
        np.testing.assert_allclose(together, np.concatenate(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("user_inputs", [(), ("history",)], ids=["own", "user's"])
def test_masks_by_ids_are_those_of_the_trained_tower(
    pooling: str, user_inputs: tuple[str, ...], tmp_path: Path
) -> None:
    modules = trained(pooling)
    spec = replace(SPEC, tower=TowerSpec(user_inputs=user_inputs))
    # The samples have ids that the tables wrap and leave out.
    model = published(spec, modules, tmp_path, samples=request_of(LENGTHS, seed=1))
    check(model, modules)
    if user_inputs:
        model.engine.users = UserCache(UserStates(1 << 20), bytes(16))
        check(model, modules)
        assert model.engine.users.hits > 0


@pytest.mark.parametrize("number", [-1, 2**62])
def test_a_tower_gets_ids_that_no_row_has(number: int) -> None:
    request = request_of([2]) | {"history": np.array([5, number])}
    checked = InputPolicy(SPEC).apply(make_input(SPEC, request))
    # Modulo wraps the row alone.
    assert number in checked.groups[0].values


@pytest.mark.parametrize("pad_to", ["longest", "max_length"])
@pytest.mark.parametrize(("keep", "pad"), [("first", "right"), ("last", "left")])
def test_ids_stand_beside_their_rows(keep: str, pad: str, pad_to: str, tmp_path: Path) -> None:
    modules = trained("target")
    spec = with_history(keep=keep, pad=pad, pad_to=pad_to)
    spec = replace(spec, tower=TowerSpec(user_inputs=("history",)))
    check(published(spec, modules, tmp_path), modules)


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.INT8])
def test_towers_of_a_low_precision_read_ids_as_they_are(
    precision: Precision, tmp_path: Path
) -> None:
    modules = trained("target")
    spec = replace(SPEC, tower=TowerSpec(precision=precision))
    samples = request_of(LENGTHS * 5, seed=2)
    model = published(spec, modules, tmp_path, samples=samples)
    expected = expected_scores(spec, modules, samples)
    np.testing.assert_allclose(model.predict(samples)["score"], expected, atol=0.01)


@pytest.mark.skipif(not can_run("avx2"), reason="this processor has no AVX2")
def test_masks_by_ids_are_the_same_with_avx2(tmp_path: Path) -> None:
    spec = replace(SPEC, tower=TowerSpec(user_inputs=("history",)))
    paths = {
        pooling: str(published(spec, trained(pooling), tmp_path / pooling).artifact.path)
        for pooling in POOLINGS
    }
    script = (
        f"from {__name__} import check, open_model, trained\n"
        f"for pooling, path in {paths!r}.items():\n"
        "    check(open_model(path), trained(pooling))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | limiting_variables("avx2"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
