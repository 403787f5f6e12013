from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional

from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.towers.lowering.joined.joined_passes import JoinedPasses
from sharded_infer.towers.lowering.sequences.row_steps import RowPass
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.split import user_program
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.user_split import UserSplit
from sharded_infer.zoo.history import SequenceSizes
from sharded_infer.zoo.hstu import RelativeBias
from sharded_infer.zoo.registry import ARCHITECTURES, build_tower
from tests.sharded_infer.towers.stored import Signature

DIM, LONGEST = 16, 20

State = Callable[["Ranker", Tensor, Tensor, Tensor], Tensor]
Score = Callable[["Ranker", Tensor, Tensor], Tensor]


def by_product(ranker: "Ranker", user: Tensor, embeddings: Tensor) -> Tensor:
    return (user * embeddings).sum(-1).sigmoid()


class Ranker(nn.Module):
    """A user's state of rows, lengths and ages, and a score of it and the candidate."""

    def __init__(self, state: State, score: Score = by_product) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.state, self.score = state, score
        self.first, self.second = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm, self.place = nn.LayerNorm(DIM), nn.Parameter(torch.randn(LONGEST, DIM))
        self.places = nn.Embedding(LONGEST, DIM)
        self.top = nn.Sequential(nn.Linear(3 * DIM, 16), nn.GELU(), nn.Linear(16, 1))
        self.bias = RelativeBias(LONGEST, 30)
        self.torchs, self.conv = nn.MultiheadAttention(DIM, 2), nn.Conv1d(DIM, DIM, 1)
        self.encoder = nn.TransformerEncoderLayer(DIM, 2, 32, batch_first=True, norm_first=True)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(
        self, history: Tensor, history_lengths: Tensor, age: Tensor, embeddings: Tensor
    ) -> Tensor:
        return self.score(self, self.state(self, history, history_lengths, age), embeddings)

    def attended(self, steps: Tensor, age: Tensor | None = None) -> Tensor:
        """Causal attention of two heads, by a SiLU with biases where ages are given."""
        parts = self.first(self.norm(steps)).chunk(3, 2)
        query, key, value = (one.unflatten(2, (2, -1)).transpose(1, 2) for one in parts)
        if age is None:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            order = torch.arange(steps.shape[1])
            scores = query @ key.transpose(2, 3) + self.bias(age.squeeze(2)).unsqueeze(1)
            weights = functional.silu(scores).masked_fill(order > order.unsqueeze(1), 0.0)
            mixed = weights / LONGEST @ value
        return steps + self.second(mixed.transpose(1, 2).flatten(2))


class Stored:
    """A stored tower, which is exported once; each `split` lowers it again."""

    def __init__(self, tower: nn.Module, folder: Path, *, has_age: bool = True) -> None:
        history = SequenceInput(DIM, LONGEST, dense={"age": 1} if has_age else {})
        self._signature = Signature(DIM, sequences={"history": history})
        self._path = folder / "tower.pt2"
        write_program(self._signature.export(tower.eval().requires_grad_(False)), self._path)

    def split(self) -> UserSplit:
        return self._signature.load(self._path).split_user(("history",), (Run(False, DIM),))


def stage(split: UserSplit) -> GraphModule:
    """The user's stage of histories without padding; `split` must be kept."""
    return split.program.whole or split.program.request


def joined(program: GraphModule) -> list[int]:
    calls = (one for one in program.modules() if isinstance(one, JoinedPasses))
    return [len(one.members) for one in calls]


def states(split: UserSplit, length: int, *, has_age: bool = True) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(length)
    history = torch.randn(1, length, DIM, generator=generator)
    ages = torch.rand(1, length, 1, generator=generator) * 1e6
    given = [history, torch.tensor([length]), *[ages] * has_age]
    return split.user(given, torch.empty(1, 0), whole=True)


def check_bits(
    tower: nn.Module, folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_age: bool = True
) -> UserSplit:
    """The tower in two stages; the user's bits are those of its passes one by one."""
    stored = Stored(tower, folder, has_age=has_age)
    split = stored.split()
    with monkeypatch.context() as patch:
        patch.setattr(user_program, "join_passes", lambda program, inputs: 0)
        apart = stored.split()
    assert not joined(stage(apart))
    for length in (1, 2, 7, LONGEST):
        found, expected = (states(one, length, has_age=has_age) for one in (split, apart))
        assert all(map(torch.equal, found, expected)) and len(found) == len(expected)
    return split


OPTIONS: dict[str, dict[str, object]] = {
    "sasrec": {"blocks": 2, "heads": 2},
    "sasrec-forward": {"blocks": 2, "heads": 2},
    "hstu": {"layers": 3, "heads": 2, "time_buckets": 40, "top": [8, 1]},
}


@pytest.mark.parametrize("architecture", OPTIONS)
def test_a_users_stage_of_the_zoo_is_one_call(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    companions = ARCHITECTURES[architecture].companions or ()
    tower = build_tower(
        architecture,
        dense_inputs={},
        feature_dims=(DIM,),
        options=OPTIONS[architecture],
        sequences={"history": SequenceSizes((DIM,), LONGEST, dict.fromkeys(companions, 1))},
    )
    for parameter in tower.parameters():
        nn.init.normal_(parameter, std=0.3)
    split = check_bits(tower, tmp_path, monkeypatch, has_age=bool(companions))
    layers = 3 if architecture == "hstu" else 2
    # Rows before, between and behind the attentions, and biases by time.
    [passes] = joined(stage(split))
    assert passes >= 2 * layers + (architecture == "hstu")
    assert len([node for node in stage(split).graph.nodes if node.op.startswith("call")]) <= 5


def by_torchs_layers(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    length = history.shape[1]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    steps = ranker.encoder(history + ranker.place[:length], src_mask=later)
    found: Tensor = ranker.norm(steps)[:, -1]
    return found


def by_the_authors_layers(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    """As SASRec's authors write it in torch: attention with weights, convolutions of one item."""
    steps = history.transpose(0, 1)
    length = steps.shape[0]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    query = functional.layer_norm(steps, (DIM,))
    mixed, _ = ranker.torchs(query, steps, steps, attn_mask=later)
    rows = ranker.norm((query + mixed).transpose(0, 1))
    inner = ranker.conv(rows.transpose(1, 2)).relu()
    steps = (ranker.conv(inner).transpose(1, 2) + rows).transpose(0, 1)
    found: Tensor = ranker.norm(steps.transpose(0, 1))[:, -1]
    return found


def by_products(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    """As GPT's are often written: a mask of -inf and a softmax between two products."""
    steps, length = history, history.shape[1]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    for _ in range(2):
        parts = ranker.first(ranker.norm(steps)).split(DIM, dim=2)
        query, key, value = (one.view(-1, length, 2, 8).transpose(1, 2) for one in parts)
        scores = (query @ key.transpose(-2, -1)) * 0.3
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).contiguous().view(-1, length, DIM)
        steps = steps + ranker.second(mixed)
    found: Tensor = ranker.norm(steps)[:, -1]
    return found


def by_permuting(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    steps, (batch, length, _) = history, history.shape
    for _ in range(2):
        three = ranker.first(ranker.norm(steps)).view(batch, length, 3, 2, -1)
        query, key, value = three.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        steps = steps + ranker.second(mixed.transpose(1, 2).reshape(batch, length, DIM))
    found: Tensor = ranker.norm(steps)[:, -1]
    return found


def by_days(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    # Bounded before they are whole numbers: what is no number has no bucket, and is refused.
    seconds = age.squeeze(2)
    days = (seconds.unsqueeze(1) - seconds.unsqueeze(2)).abs().div(86_400).clamp(0, 29).long()
    parts = ranker.first(history).chunk(3, 2)
    query, key, value = (one.unflatten(2, (2, -1)).transpose(1, 2) for one in parts)
    scores = query @ key.transpose(2, 3) + ranker.bias.times[days].unsqueeze(1)
    mixed = functional.silu(scores) / LONGEST @ value
    found: Tensor = ranker.second(mixed.transpose(1, 2).flatten(2))[:, -1]
    return found


def test_a_bias_that_torch_refuses_for_what_is_no_number_stays_torchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = check_bits(Ranker(by_days), tmp_path, monkeypatch)
    given = [torch.zeros(1, 3, DIM), torch.tensor([3]), torch.full((1, 3, 1), torch.nan)]
    with pytest.raises(IndexError):
        split.user(given, torch.empty(1, 0), whole=True)


def two_calls(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    steps = ranker.attended(history + ranker.place[: history.shape[1]])
    # Of all rows at once: torch computes it.
    steps = steps + steps.cumsum(1)
    return ranker.attended(ranker.attended(steps))[:, -1]


def biases_read_twice(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    steps = ranker.attended(ranker.attended(history, age), age)
    return steps[:, -1] + ranker.bias(age.squeeze(2)).sum(2).mean(1, keepdim=True)


@pytest.mark.parametrize(
    ("state", "calls", "passes", "most_nodes"),
    [
        (by_torchs_layers, 1, 4, 6),
        (by_the_authors_layers, 1, 4, 5),
        (by_products, 1, 5, 5),
        (by_permuting, 1, 5, 5),
        # What mixes rows otherwise lies between two calls.
        (two_calls, 2, 5, 40),
        # Biases that others read are those of all pairs, and each span has its own.
        (biases_read_twice, 1, 5, 40),
        (lambda r, h, _, age: r.attended(r.attended(h, age), -age.square())[:, -1], 1, 6, 40),
    ],
)
def test_passes_beside_each_other_are_one_call(
    state: State,
    calls: int,
    passes: int,
    most_nodes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = check_bits(Ranker(state), tmp_path, monkeypatch)
    found = stage(split)
    assert len(joined(found)) == calls and sum(joined(found)) >= passes
    assert sum(node.op.startswith("call") for node in found.graph.nodes) <= most_nodes
    # A call counts its weights; those of two calls add places.
    held = 4 * DIM * DIM if calls == 1 else 2 * (4 * DIM * DIM) + LONGEST * DIM
    assert sum(one.numel() for one in found.buffers()) >= held


def one_pass(ranker: Ranker, history: Tensor, lengths: Tensor, age: Tensor) -> Tensor:
    return ranker.second(ranker.norm(history.cumsum(1)))[:, -1]


def test_one_pass_alone_is_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not joined(stage(split := Stored(Ranker(one_pass), tmp_path).split()))
    assert any(isinstance(one, RowPass) for one in stage(split).modules())
