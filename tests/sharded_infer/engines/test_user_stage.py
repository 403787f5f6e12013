"""The user's stage: computed once a request, cached to the bit, never across versions."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.sequences.user_states import UserStates
from sharded_infer.engines.host_engine import HostEngine
from sharded_infer.engines.model import Model, open_model
from sharded_infer.engines.user_cache import UserCache
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.batches import run_together

DIM = 8


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(DIM, 16)
        self.user = nn.Sequential(nn.Linear(16 + DIM + 1, 32), nn.ReLU(), nn.Linear(32, DIM))

    def forward(
        self, age: Tensor, price: Tensor, history: Tensor, history_lengths: Tensor,
        embeddings: Tensor,
    ) -> Tensor:  # fmt: skip
        user, item = embeddings.split([DIM, DIM], dim=1)
        there = torch.arange(history.shape[1])[None] < history_lengths[:, None]
        mixed = (torch.relu(self.mix(history)) * there.unsqueeze(2)).sum(1)
        state = self.user(torch.cat([mixed, user, age], 1))
        return torch.sigmoid((state * item).sum(1) + price.squeeze(1))


class Target(nn.Module):
    """Attention of each candidate over the history: the user's stage keeps each position."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(DIM, DIM)
        self.top = nn.Linear(3 * DIM + 2, 1)

    def forward(
        self, age: Tensor, price: Tensor, history: Tensor, history_lengths: Tensor,
        embeddings: Tensor,
    ) -> Tensor:  # fmt: skip
        user, item = embeddings.split([DIM, DIM], dim=1)
        there = torch.arange(history.shape[1])[None] < history_lengths[:, None]
        keys = self.key(history)
        logits = torch.bmm(item.unsqueeze(1), keys.transpose(1, 2)).squeeze(1)
        weights = logits.masked_fill(~there, -1e9).softmax(1) * there
        seen = torch.bmm(weights.unsqueeze(1), history).squeeze(1)
        return torch.sigmoid(self.top(torch.cat([seen, user, item, age, price], 1))).squeeze(1)


SPEC = ModelSpec(
    "ranker",
    (TableSpec("user", 60, DIM), TableSpec("item", 500, DIM, features=("candidate", "history"))),
    dense=DenseSpec({"age": 1, "price": 1}),
    tower=TowerSpec(user_inputs=("age", "user", "history")),
    sequences={"history": SequenceSpec(max_length=100, features=("history",))},
)


def published(tower: nn.Module, folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    tables = {"user": nn.EmbeddingBag(60, DIM, mode="sum"), "item": nn.Embedding(500, DIM)}
    return publish(SPEC, tables, tower, folder).path


@pytest.fixture(scope="module", params=[Encoder, Target])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    return published(request.param(), tmp_path_factory.mktemp("users"))


@pytest.fixture
def model(path: Path) -> Model:
    return open_model(path, verify=False)


def request_of(user: int, candidates: int, *, repeat: bool = False, length: int = 20) -> ModelInput:
    """A request of a user, whose history follows from their number; or sent per candidate."""
    own = np.random.default_rng(1000 + user)
    history = own.integers(0, 500, length)
    generator = np.random.default_rng(user * 7 + candidates)
    copies = candidates if repeat else 1
    arrays = {
        "age": np.full((candidates, 1), own.random(), np.float32),
        "price": generator.random((candidates, 1), np.float32),
        "candidate": generator.integers(0, 500, candidates),
        "user": np.full(copies, user % 60),
        "history": np.tile(history, copies),
        "history.lengths": np.full(copies, length),
    }
    return InputPolicy(SPEC).apply(make_input(SPEC, arrays))


def scores(model: Model, *requests: ModelInput) -> list[NDArray[np.float32]]:
    return [one.scores[0] for one in run_together(model, requests)]


def cached(model: Model, most_bytes: int = 1 << 20) -> UserCache:
    assert isinstance(model.engine, HostEngine)
    version = bytes(str(model.artifact.path), "utf-8")[-16:]
    cache = model.engine.users = UserCache(UserStates(most_bytes), version)
    return cache


@pytest.mark.parametrize("length", [0, 1, 100, 130])
def test_the_stages_score_as_the_whole_tower(model: Model, length: int) -> None:
    shared = request_of(3, 40, length=length)
    whole = request_of(3, 40, length=length, repeat=True)
    np.testing.assert_allclose(
        scores(model, shared)[0], scores(model, whole)[0], rtol=1e-5, atol=1e-6
    )


def test_a_hit_has_the_bits_of_a_miss(model: Model) -> None:
    cold = [scores(model, request_of(user, 10))[0] for user in range(8)]
    cache = cached(model)
    missed = [scores(model, request_of(user, 10))[0] for user in range(8)]
    assert (cache.hits, cache.misses, len(cache)) == (0, 8, 8)
    found = [scores(model, request_of(user, 10))[0] for user in range(8)]
    assert (cache.hits, cache.misses) == (8, 8)
    for one, two, three in zip(cold, missed, found, strict=True):
        assert np.array_equal(one, two)
        assert np.array_equal(two, three)


def test_hits_and_misses_of_a_batch_keep_their_bits(model: Model) -> None:
    requests = [request_of(user, 6) for user in range(6)]
    cold = scores(model, *requests)
    cache = cached(model)
    scores(model, requests[1], requests[4])
    found = scores(model, *requests)
    assert (cache.hits, cache.misses) == (2, 6)
    for one, other in zip(cold, found, strict=True):
        assert np.array_equal(one, other)


def test_another_history_or_age_of_a_user_is_no_hit(model: Model) -> None:
    cache = cached(model)
    base = request_of(5, 4)
    scores(model, base)
    scores(model, request_of(5, 4, length=19))
    base.dense[0][:] = 0.25
    scores(model, base)
    assert (cache.hits, cache.misses) == (0, 3)


def test_candidates_sent_one_by_one_find_their_user(model: Model) -> None:
    cache = cached(model)
    scores(model, *(request_of(2, 1) for _ in range(4)))
    scores(model, request_of(2, 1), request_of(2, 1))
    assert cache.hits >= 2
    assert len(cache) == 1


def test_old_users_go_and_memory_is_bounded(model: Model) -> None:
    cache = cached(model, 20_000)
    for user in range(50):
        scores(model, request_of(user, 2))
        assert cache.held_bytes <= 20_000
    # While memory is short, a state is kept when it comes for the second time.
    assert cache.newly_evicted() == 0
    assert 0 < len(cache) < 50
    scores(model, request_of(49, 2))
    assert cache.newly_evicted() > 0
    before = cache.hits
    scores(model, request_of(49, 2))
    assert cache.hits == before + 1


def test_a_state_that_is_larger_than_the_cache_is_not_kept(model: Model) -> None:
    small = cached(model, 3_000)
    request = request_of(1, 2, length=100)
    scores(model, request, request, request)
    assert small.held_bytes <= 3_000


def test_versions_have_caches_of_their_own(path: Path, tmp_path: Path) -> None:
    torch.manual_seed(2)
    first, second = open_model(path, verify=False), open_model(published(Encoder(), tmp_path, 5))
    caches = [cached(first), cached(second)]
    expected = scores(second, request_of(1, 3))[0]
    for model in (first, second, first, second):
        scores(model, request_of(1, 3))
    assert [(cache.hits, cache.misses) for cache in caches] == [(1, 1), (2, 1)]
    assert np.array_equal(scores(second, request_of(1, 3))[0], expected)


def test_candidates_of_different_users_in_one_request_run_whole(model: Model) -> None:
    batch = request_of(3, 2)
    batch.dense[0][:] = [[0.1], [0.9]]
    halves = []
    for candidate in range(2):
        own = request_of(3, 2)
        own.dense[0][:] = batch.dense[0][candidate]
        halves.append(scores(model, own)[0][candidate])
    np.testing.assert_allclose(scores(model, batch)[0], halves, rtol=1e-5, atol=1e-6)


def test_threads_share_the_cache(model: Model) -> None:
    cache = cached(model, 30_000)
    expected = {user: scores(model, request_of(user, 3))[0] for user in range(12)}
    wrong: list[int] = []

    def work(seed: int) -> None:
        for user in np.random.default_rng(seed).integers(0, 12, 60).tolist():
            if not np.array_equal(scores(model, request_of(user, 3))[0], expected[user]):
                wrong.append(user)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.hits > 0
