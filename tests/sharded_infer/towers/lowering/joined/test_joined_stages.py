from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.errors import InputError
from sharded_infer.towers.split.user_split import UserSplit
from tests.sharded_infer.towers.lowering.joined.test_joined_passes import (
    DIM,
    LONGEST,
    Ranker,
    Score,
    State,
    Stored,
    by_product,
)


def by_index(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    steps = ranker.attended(history + ranker.places.weight[: history.shape[1]])
    return ranker.norm(steps)[torch.arange(steps.shape[0]), (lengths - 1).clamp(min=0)]


def by_embedded_places(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    places = torch.arange(history.shape[1])
    there = (places < lengths.unsqueeze(1)).unsqueeze(2)
    steps = ranker.attended(history * DIM**0.5 + ranker.places(places)) * there
    last = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, DIM)
    return ranker.norm(functional.gelu(ranker.second(steps))).gather(1, last).squeeze(1)


def by_mean(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    there = (torch.arange(history.shape[1]) < lengths.unsqueeze(1)).unsqueeze(2)
    return (ranker.attended(history) * there).sum(1) / lengths.clamp(min=1).unsqueeze(1)


def by_layers(ranker: Ranker, user: Tensor, embeddings: Tensor) -> Tensor:
    joined = torch.cat([user, embeddings, user * embeddings], dim=-1)
    score: Tensor = ranker.top(joined).squeeze(-1).sigmoid()
    return score


def by_user_alone(ranker: Ranker, user: Tensor, embeddings: Tensor) -> Tensor:
    score: Tensor = ranker.second(user).tanh().mean(1) + ranker.second(embeddings).tanh().mean(1)
    return score


def check(split: UserSplit, ranker: Ranker) -> bool:
    """Compares with the module and with two stages; True if it is one call."""
    is_one = False
    with torch.inference_mode():
        for length, candidates in ((1, 1), (2, 30), (7, 5), (LONGEST, 100)):
            generator = torch.Generator().manual_seed(length)
            history = torch.randn(1, length, DIM, generator=generator)
            ages = torch.rand(1, length, 1, generator=generator)
            own = torch.randn(candidates, DIM, generator=generator)
            given, none = [history, torch.tensor([length]), ages], torch.empty(1, 0)
            expected = ranker(*[one.expand(candidates, *one.shape[1:]) for one in given], own)
            user = split.user(given, none, whole=True)
            [apart] = split.candidates([], own, [user], [candidates])
            torch.testing.assert_close(apart, expected, rtol=0, atol=1e-5)
            found = split.together(given, none, [], own)
            is_one = found is not None
            if found is not None:
                assert torch.equal(torch.from_numpy(found[0]), apart)
    return is_one


@pytest.mark.parametrize(
    ("user", "score"), [(by_index, by_layers), (by_embedded_places, by_product)]
)
def test_plain_modules_are_one_call(user: State, score: Score, tmp_path: Path) -> None:
    ranker = Ranker(user, score)
    split = Stored(ranker, tmp_path).split()
    assert check(split, ranker)
    history, others = torch.zeros(1, 3, DIM), [torch.tensor([3]), torch.zeros(1, 3, 1)]
    with pytest.raises(InputError, match="expected .* numbers, got"):
        split.together([history, *others], torch.empty(1, 0), [], torch.zeros(5, DIM - 1))
    with pytest.raises(InputError, match="expected .* numbers, got"):
        split.together([history[..., 1:], *others], torch.empty(1, 0), [], torch.zeros(5, DIM))


@pytest.mark.parametrize(("user", "score"), [(by_mean, by_product), (by_index, by_user_alone)])
def test_what_passes_cannot_compute_takes_more_calls(
    user: State, score: Score, tmp_path: Path
) -> None:
    ranker = Ranker(user, score)
    assert not check(Stored(ranker, tmp_path).split(), ranker)
