"""Histories that grow, are edited, cut and shared: scores have the bits of those without a cache.

`HISTORIES=1000000 pytest ...::test_random_histories_score_as_without_a_cache` tries more of them.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.sequences.user_states import BLOCK_POSITIONS, Prefixes, UserStates
from sharded_infer.engines.host_engine import HostEngine
from sharded_infer.engines.model import Model, open_model
from sharded_infer.engines.user_cache import UserCache
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, GateSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.zoo.history import SequenceSizes
from sharded_infer.zoo.registry import AGE, HISTORY, build_tower
from tests.support.batches import run_together

DIM, ITEMS, LONGEST, CANDIDATES = 16, 300, 70, 2
COUNT = int(os.environ.get("HISTORIES", "1000"))
OPTIONS: dict[str, dict[str, object]] = {
    "sasrec-forward": {"blocks": 2, "heads": 2},
    "hstu": {"layers": 2, "heads": 2, "time_buckets": 40, "top": [8, 1]},
}


class Encoder(nn.Module):
    """torch's own encoder; also for what a stranger's model may do beside it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.positions = nn.Embedding(LONGEST, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 2, 32, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, history: Tensor, history_lengths: Tensor, embeddings: Tensor) -> Tensor:
        order = torch.arange(history.shape[1])
        later = None if self.kind == "bidirectional" else order > order.unsqueeze(1)
        padding = order >= history_lengths.clamp(min=1).unsqueeze(1)
        places = history_lengths.unsqueeze(1) - 1 - order if self.kind == "from the end" else order
        steps = self.layers(
            history + self.positions(places.clamp(min=0)), mask=later, src_key_padding_mask=padding
        )
        if self.kind == "mean":
            user = steps.masked_fill(padding.unsqueeze(2), 0.0).sum(1)
        else:
            last = (history_lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, DIM)
            user = steps.gather(1, last).squeeze(1)
        return torch.sigmoid((user * embeddings).mean(1))


def published(name: str, folder: Path, longest: int = LONGEST, **changes: object) -> Path:
    torch.manual_seed(0)
    dense = {AGE: 1} if name == "hstu" else {}
    sequence = SequenceSpec(longest, (HISTORY,), dense, **changes)  # type: ignore[arg-type]
    tower: nn.Module
    if name in OPTIONS:
        tower = build_tower(
            name,
            dense_inputs={},
            feature_dims=(DIM,),
            options=OPTIONS[name],
            sequences={HISTORY: SequenceSizes((DIM,), longest, dense)},
        )
        with torch.no_grad():
            for parameter in tower.parameters():
                if not parameter.any():
                    parameter.normal_(std=0.1)
    else:
        tower = Encoder(name)
    table = TableSpec("item", ITEMS, DIM, features=("candidate", HISTORY))
    spec = ModelSpec(
        "ranker", (table,), tower=TowerSpec(user_inputs=(HISTORY,)),
        gate=GateSpec(max_score_diff=1.0), sequences={HISTORY: sequence},
    )  # fmt: skip
    return publish(spec, {"item": nn.Embedding(ITEMS, DIM)}, tower.eval(), folder).path


@pytest.fixture(scope="module", params=[*OPTIONS, "encoder"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return open_model(published(request.param, tmp_path_factory.mktemp("growing")), verify=False)


def cached(model: Model, states: UserStates) -> UserCache:
    assert isinstance(model.engine, HostEngine)
    model.engine.users = UserCache(states, bytes(16))
    return model.engine.users


def without(model: Model) -> None:
    assert isinstance(model.engine, HostEngine)
    model.engine.users = None


def request_of(model: Model, history: NDArray[np.int64]) -> ModelInput:
    """Each item has the age of its place."""
    arrays: dict[str, NDArray[np.generic]] = {
        HISTORY: history[None],
        "candidate": history[-1:].repeat(CANDIDATES) if len(history) else np.arange(CANDIDATES),
    }
    if AGE in model.spec.sequences[HISTORY].dense:
        arrays[AGE] = (1e5 - 321.0 * np.arange(len(history), dtype=np.float32))[None, :, None]
    return InputPolicy(model.spec).apply(make_input(model.spec, arrays))


def random_histories(count: int, seed: int, longest: int = LONGEST) -> Iterator[NDArray[np.int64]]:
    """Those of a few users: longer ones, edited, cut, and others' beginnings with another end."""
    generator = np.random.default_rng(seed)
    users = [generator.integers(0, ITEMS, int(n)) for n in generator.integers(0, longest, 12)]
    for _ in range(count):
        user = int(generator.integers(len(users)))
        history, kind = users[user], generator.random()
        if kind < 0.6:
            history = np.concatenate([history, generator.integers(0, ITEMS, generator.integers(4))])
        elif kind < 0.7 and len(history):
            history = history.copy()
            history[generator.integers(len(history))] = generator.integers(ITEMS)
        elif kind < 0.8:
            history = history[: generator.integers(len(history) + 1)]
        elif kind < 0.9:
            other = users[int(generator.integers(len(users)))]
            end = generator.integers(0, ITEMS, generator.integers(1, 20))
            history = np.concatenate([other[: generator.integers(len(other) + 1)], end])
        if len(history) > longest:
            history = history[: generator.integers(longest)]
        users[user] = history
        yield history


def test_random_histories_score_as_without_a_cache(model: Model) -> None:
    cache = cached(model, UserStates(1 << 20))
    differing = 0
    for number, history in enumerate(random_histories(COUNT, seed=COUNT)):
        request = request_of(model, history)
        cached_scores = model.engine.run(request).scores[0]
        assert isinstance(model.engine, HostEngine)
        model.engine.users = None
        plain = model.engine.run(request).scores[0]
        # Another engine's states too: all that differs is the version.
        model.engine.users = cache if number % 97 else UserCache(cache._states, bytes(15) + b"1")
        differing += not np.array_equal(cached_scores, plain)
    assert differing == 0
    assert cache.hits > COUNT / 4


@pytest.mark.parametrize("is_cached", [True, False])
def test_requests_of_one_batch_are_computed_apart(model: Model, is_cached: bool) -> None:
    generator, histories = np.random.default_rng(1), list(random_histories(COUNT // 5, seed=1))
    without(model)
    requests = [request_of(model, one) for one in histories]
    plain = [model.engine.run(request).scores[0] for request in requests]
    cache = cached(model, UserStates(1 << 20)) if is_cached else None
    at = 0
    while at < len(histories):
        end = at + int(generator.integers(1, 7))
        results = run_together(model, requests[at:end])
        for result, scores in zip(results, plain[at:end], strict=True):
            assert np.array_equal(result.scores[0], scores)
        at = end
    assert cache is None or cache.hits > COUNT / 20


def test_states_in_bf16_take_half_the_memory_and_change_scores_little(model: Model) -> None:
    history = np.random.default_rng(3).integers(0, ITEMS, LONGEST)
    without(model)
    plain = model.engine.run(request_of(model, history)).scores[0]
    sizes = []
    for is_bfloat in (False, True):
        cache = cached(model, UserStates(1 << 20, is_bfloat=is_bfloat))
        first, second = (model.engine.run(request_of(model, history)) for _ in range(2))
        assert np.array_equal(first.scores[0], plain)
        assert second.work.users[2] == LONGEST // BLOCK_POSITIONS * BLOCK_POSITIONS
        assert np.array_equal(second.scores[0], plain) is not is_bfloat
        np.testing.assert_allclose(second.scores[0], plain, atol=5e-3)
        sizes.append(cache.held_bytes)
    assert sizes[0] == 2 * sizes[1]


def test_evicted_states_are_computed_again(model: Model) -> None:
    cache = cached(model, UserStates(40_000))
    histories = list(random_histories(300, seed=5))
    scores = [model.engine.run(request_of(model, one)).scores[0] for one in histories]
    assert cache.newly_evicted() > 0 and cache.held_bytes <= 40_000
    without(model)
    for history, cached_scores in zip(histories, scores, strict=True):
        assert np.array_equal(model.engine.run(request_of(model, history)).scores[0], cached_scores)


class Evicting(UserCache):
    """Evicts known beginnings before they are read, while `is_to_evict`."""

    is_to_evict = False

    def prefixes(self, *words: Any) -> Prefixes:
        found = super().prefixes(*words)
        for other in range(self.is_to_evict * 40):
            self.keep(other.to_bytes(16), (torch.ones(500),), seconds=1.0, is_always=True)
        return found


@pytest.mark.parametrize("together", [1, 3])
def test_states_evicted_before_they_are_read_are_computed_and_counted(
    model: Model, together: int
) -> None:
    histories = np.random.default_rng(5).integers(0, ITEMS, (together, LONGEST))
    requests = [request_of(model, history) for history in histories]
    without(model)
    plain = [result.scores[0] for result in run_together(model, requests)]
    assert isinstance(model.engine, HostEngine)
    cache = model.engine.users = Evicting(UserStates(150_000), bytes(16))
    kept = LONGEST // BLOCK_POSITIONS * BLOCK_POSITIONS
    for evicted, known in ((False, 0), (False, kept), (True, 0)):
        cache.is_to_evict = evicted
        results = run_together(model, requests)
        hits = together if known else 0
        positions = known * together, (LONGEST - known) * together
        assert results[0].work.users == (hits, together - hits, *positions)
        for result, expected in zip(results, plain, strict=True):
            assert np.array_equal(result.scores[0], expected)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bidirectional", "attention: every position reads later ones"),
        ("mean", r"aten\.sum.* is in no compiled pass"),
        ("from the end", "positions are counted from the end of the history"),
    ],
)
def test_a_stage_that_cannot_be_continued_says_why_and_is_kept_whole(
    kind: str, reason: str, tmp_path: Path
) -> None:
    model = open_model(published(kind, tmp_path, min_length=1), verify=False)
    assert re.fullmatch(f"whole: .*{reason}", str(model.kept_states))
    cache = cached(model, UserStates(1 << 20))
    request = request_of(model, np.arange(50))
    for _ in range(2):
        model.engine.run(request)
    assert (cache.hits, cache.misses) == (1, 1)


def test_an_anchored_window_keeps_its_beginning_while_a_history_grows(tmp_path: Path) -> None:
    anchor = 16
    model = open_model(published("sasrec-forward", tmp_path, anchor=anchor), verify=False)
    items = np.random.default_rng(7).integers(0, ITEMS, 3 * LONGEST)
    cache = cached(model, UserStates(1 << 20))
    hits = 0
    for length in range(LONGEST, len(items)):
        result = model.engine.run(request_of(model, items[:length]))
        start = -(-(length - LONGEST) // anchor) * anchor
        hits += result.work.users[0]
        users = cache
        without(model)
        expected = model.engine.run(request_of(model, items[start:length])).scores[0]
        assert isinstance(model.engine, HostEngine)
        model.engine.users = users
        assert np.array_equal(result.scores[0], expected)
    # A window of another beginning is computed once.
    moves = -(-2 * LONGEST // anchor)
    assert hits >= 2 * LONGEST - moves - 1


def test_biases_of_more_than_a_million_pairs_grow(tmp_path: Path) -> None:
    model = open_model(published("hstu", tmp_path, longest=1_040), verify=False)
    items = np.random.default_rng(5).integers(0, ITEMS, 1_040)
    expected = model.engine.run(request_of(model, items)).scores[0]
    cached(model, UserStates(1 << 24))
    model.engine.run(request_of(model, items[:-3]))
    result = model.engine.run(request_of(model, items))
    assert result.work.users == (1, 0, 1_024, 16)
    assert np.array_equal(result.scores[0], expected)


def test_prepared_states_are_kept_even_while_memory_is_short(model: Model) -> None:
    cache = cached(model, UserStates(60_000))
    for history in random_histories(200, seed=9):
        model.engine.run(request_of(model, history))
    history = np.random.default_rng(11).integers(0, ITEMS, 40)
    whole = 40 // BLOCK_POSITIONS * BLOCK_POSITIONS
    assert model.prepare(request_of(model, history)) == (0, 40)
    assert model.prepare(request_of(model, history)) == (whole, 40 - whole)
    assert model.engine.run(request_of(model, history)).work.users[2] == whole
    assert len(cache) > 0


class WithUser(Encoder):
    """A user's own features beside their history, in the user's stage and the candidates'."""

    def __init__(self, *, by_product: bool) -> None:
        super().__init__("with user")
        self.join, self.by_product = nn.Linear(2 * DIM + 1, DIM), by_product
        self.top = nn.Sequential(nn.Linear(2 * DIM, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(  # type: ignore[override]
        self, country: Tensor, history: Tensor, history_lengths: Tensor, embeddings: Tensor
    ) -> Tensor:
        user, candidate = embeddings.split(DIM, dim=1)
        order = torch.arange(history.shape[1])
        steps = self.layers(history + self.positions(order), mask=order > order.unsqueeze(1))
        last = (history_lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, DIM)
        seen = steps.gather(1, last).squeeze(1)
        state = self.join(torch.cat([seen, user, country], 1))
        if self.by_product:
            return torch.sigmoid((state * candidate).mean(1))
        return torch.sigmoid(self.top(torch.cat([state, candidate], 1)).squeeze(1))


@pytest.mark.parametrize("by_product", [False, True])
def test_a_users_own_features_change_without_their_historys_states(
    tmp_path: Path, by_product: bool
) -> None:
    torch.manual_seed(0)
    spec = ModelSpec(
        "ranker",
        (
            TableSpec("user", 60, DIM),
            TableSpec("item", ITEMS, DIM, features=("candidate", HISTORY)),
        ),
        dense=DenseSpec({"country": 1}),
        tower=TowerSpec(user_inputs=("country", "user", HISTORY)),
        gate=GateSpec(max_score_diff=1.0),
        sequences={HISTORY: SequenceSpec(LONGEST, (HISTORY,), min_length=1)},
    )
    tables = {
        "user": nn.EmbeddingBag(60, DIM, mode="sum"),
        "item": nn.Embedding(ITEMS, DIM),
    }
    model = open_model(
        publish(spec, tables, WithUser(by_product=by_product).eval(), tmp_path).path, verify=False
    )
    assert str(model.kept_states).startswith("by positions")
    history = np.random.default_rng(2).integers(0, ITEMS, 60)

    def request(user: int, length: int) -> ModelInput:
        arrays = {
            "user": np.array([[user]]),
            "country": np.full((1, 1), user / 7, np.float32),
            HISTORY: history[None, :length],
            "candidate": np.arange(CANDIDATES),
        }
        return InputPolicy(spec).apply(make_input(spec, arrays))

    def run(user: int, length: int) -> NDArray[np.float32]:
        return model.engine.run(request(user, length)).scores[0]

    asked = [(user, length) for length in range(20, 61, 4) for user in range(3)]
    plain = [run(user, length) for user, length in asked]
    assert not np.array_equal(plain[0], plain[1])
    cache = cached(model, UserStates(1 << 20))
    for (user, length), expected in zip(asked, plain, strict=True):
        assert np.array_equal(run(user, length), expected)
    # All but the first of these have the beginning of another user's history.
    assert cache.hits == len(asked) - 1
    for at in range(0, len(asked), 4):
        results = run_together(model, [request(*one) for one in asked[at : at + 4]])
        for result, expected in zip(results, plain[at:], strict=False):
            assert np.array_equal(result.scores[0], expected)
