from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from kernels.errors import InputError
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.user_split import UserSplit
from sharded_infer.towers.tower import Tower, export_tower

DIM, LONGEST = 12, 14


class Ranker(nn.Module):
    def __init__(
        self,
        user: Callable[["Ranker", Tensor, Tensor], Tensor],
        score: Callable[["Ranker", Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm, self.places = nn.LayerNorm(DIM), nn.Embedding(LONGEST, DIM)
        self.top = nn.Sequential(nn.Linear(3 * DIM, 16), nn.GELU(), nn.Linear(16, 1))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)
        self._user, self._score = user, score

    def forward(self, history: Tensor, history_lengths: Tensor, embeddings: Tensor) -> Tensor:
        return self._score(self, self._user(self, history, history_lengths), embeddings)

    def attended(self, steps: Tensor) -> Tensor:
        parts = self.first(self.norm(steps)).chunk(3, -1)
        query, key, value = (one.unflatten(2, (2, -1)).transpose(1, 2) for one in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return steps + self.second(mixed.transpose(1, 2).flatten(2))


def by_index(ranker: Ranker, history: Tensor, lengths: Tensor) -> Tensor:
    steps = ranker.attended(history + ranker.places.weight[: history.shape[1]])
    return ranker.norm(steps)[torch.arange(steps.shape[0]), (lengths - 1).clamp(min=0)]


def by_embedded_places(ranker: Ranker, history: Tensor, lengths: Tensor) -> Tensor:
    places = torch.arange(history.shape[1])
    there = (places < lengths.unsqueeze(1)).unsqueeze(2)
    steps = ranker.attended(history * DIM**0.5 + ranker.places(places)) * there
    last = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, DIM)
    return ranker.norm(functional.gelu(ranker.second(steps))).gather(1, last).squeeze(1)


def by_mean(ranker: Ranker, history: Tensor, lengths: Tensor) -> Tensor:
    there = (torch.arange(history.shape[1]) < lengths.unsqueeze(1)).unsqueeze(2)
    total = (ranker.attended(history) * there).sum(1)
    return total / lengths.clamp(min=1).unsqueeze(1)


def by_product(ranker: Ranker, user: Tensor, embeddings: Tensor) -> Tensor:
    return (user * embeddings).sum(-1).sigmoid()


def by_layers(ranker: Ranker, user: Tensor, embeddings: Tensor) -> Tensor:
    joined = torch.cat([user, embeddings, user * embeddings], dim=-1)
    score: Tensor = ranker.top(joined).squeeze(-1).sigmoid()
    return score


def by_user_alone(ranker: Ranker, user: Tensor, embeddings: Tensor) -> Tensor:
    score: Tensor = ranker.second(user).tanh().mean(1) + ranker.second(embeddings).tanh().mean(1)
    return score


def split_of(ranker: nn.Module, folder: Path) -> UserSplit:
    given: dict[str, Any] = {
        "dense": {},
        "embedding_width": DIM,
        "outputs": ("score",),
        "sequences": {"history": SequenceInput(DIM, LONGEST)},
    }
    module = ranker.eval().requires_grad_(False)
    path = folder / "tower.pt2"
    write_program(export_tower(module, precision=Precision.FP32, **given), path)
    return Tower.load(path, **given).split_user(("history",), (Run(False, DIM),))


def check(split: UserSplit, ranker: Ranker) -> bool:
    """Compares with the module and with two stages; True if it is one call."""
    is_one = False
    with torch.inference_mode():
        for length, candidates in ((1, 1), (2, 30), (7, 5), (LONGEST, 100)):
            generator = torch.Generator().manual_seed(length)
            history = torch.randn(1, length, DIM, generator=generator)
            own = torch.randn(candidates, DIM, generator=generator)
            lengths, none = torch.tensor([length]), torch.empty(1, 0)
            expected = ranker(history.expand(candidates, -1, -1), lengths.expand(candidates), own)
            user = split.user([history, lengths], none, whole=True)
            [apart] = split.candidates([], own, [user], [candidates])
            torch.testing.assert_close(apart, expected, rtol=0, atol=1e-5)
            found = split.together([history, lengths], none, [], own)
            is_one = found is not None
            if found is not None:
                assert torch.equal(torch.from_numpy(found[0]), apart)
    return is_one


@pytest.mark.parametrize("user", [by_index, by_embedded_places])
@pytest.mark.parametrize("score", [by_product, by_layers])
def test_plain_modules_are_one_call(
    user: Callable[[Ranker, Tensor, Tensor], Tensor],
    score: Callable[[Ranker, Tensor, Tensor], Tensor],
    tmp_path: Path,
) -> None:
    ranker = Ranker(user, score)
    split = split_of(ranker, tmp_path)
    assert check(split, ranker)
    history, lengths = torch.zeros(1, 3, DIM), torch.tensor([3])
    with pytest.raises(InputError, match="expected fp32 of"):
        split.together([history, lengths], torch.empty(1, 0), [], torch.zeros(5, DIM - 1))
    with pytest.raises(InputError, match="expected fp32 of"):
        split.together([history[..., 1:], lengths], torch.empty(1, 0), [], torch.zeros(5, DIM))


@pytest.mark.parametrize(
    ("user", "score"), [(by_mean, by_product), (by_index, by_user_alone), (by_mean, by_layers)]
)
def test_what_passes_cannot_compute_takes_more_calls(
    user: Callable[[Ranker, Tensor, Tensor], Tensor],
    score: Callable[[Ranker, Tensor, Tensor], Tensor],
    tmp_path: Path,
) -> None:
    ranker = Ranker(user, score)
    assert not check(split_of(ranker, tmp_path), ranker)
