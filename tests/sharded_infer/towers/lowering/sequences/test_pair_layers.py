from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.towers.lowering.sequences.pair_layers import PairPass
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.user_split import UserSplit
from sharded_infer.towers.tower import Tower, export_tower

DIM, LONGEST = 16, 24
SEQUENCES = {"history": SequenceInput(DIM, LONGEST)}
Activation = Callable[[], nn.Module]


class Weighing(nn.Module):
    """A DIN's weights of `[h, c, h * c]`, whose layers are given."""

    def __init__(self, hidden: tuple[int, ...], activation: Activation, *, once: bool) -> None:
        super().__init__()
        self.once = once
        widths = (DIM, *hidden) if once else (4 * DIM, *hidden)
        self.step, self.candidate = nn.Linear(DIM, hidden[0]), nn.Linear(DIM, hidden[0])
        layers: list[nn.Module] = []
        for inputs, outputs in zip(widths, hidden, strict=False):
            layers += [nn.Linear(inputs, outputs), activation(), nn.Dropout(0.1)]
        self.first, self.rest = layers[0], nn.Sequential(*layers[1:], nn.Linear(hidden[-1], 1))

    def forward(self, history: Tensor, history_lengths: Tensor, embeddings: Tensor) -> Tensor:
        if self.once:
            first = self.first(embeddings.unsqueeze(1) * history)
            first = self.step(history) + (first + self.candidate(embeddings).unsqueeze(1))
        else:
            c = embeddings.unsqueeze(1).expand(-1, history.shape[1], -1)
            first = self.first(torch.cat([c, history, c - history, c * history], dim=-1))
        weights = self.rest(first).squeeze(2)
        steps = torch.arange(history.shape[1])
        weights = weights.masked_fill(steps >= history_lengths.unsqueeze(1), 0.0)
        return (weights.unsqueeze(1) @ history).squeeze(1).sum(1).tanh()


def split_of(folder: Path, module: nn.Module, precision: Precision) -> tuple[Tower, UserSplit]:
    program = export_tower(
        module,
        dense={},
        embedding_width=DIM,
        outputs=("score",),
        sequences=SEQUENCES,
        precision=precision,
    )
    write_program(program, folder / "tower.pt2")
    tower = Tower.load(
        folder / "tower.pt2",
        dense={},
        embedding_width=DIM,
        outputs=("score",),
        sequences=SEQUENCES,
    )
    return tower, tower.split_user({"history"}, (Run(False, DIM),))


def passes(split: UserSplit) -> list[PairPass]:
    return [one for one in split.program.pair.children() if isinstance(one, PairPass)]


def scores(split: UserSplit, history: Tensor, candidates: Tensor) -> Tensor:
    user = split.user([history, torch.tensor([history.shape[1]])], torch.zeros(1, 0))
    [found] = split.candidates([], candidates, [user], [len(candidates)])
    return found


@pytest.mark.parametrize(
    ("activation", "hidden", "once"),
    [
        (nn.PReLU, (36,), True),
        (nn.PReLU, (20, 12), False),
        (nn.ReLU, (40, 20), True),
        (nn.Sigmoid, (36,), False),
        (nn.Sigmoid, (18, 7, 5), True),
    ],
)
def test_layers_on_pairs_are_one_pass(
    activation: Activation, hidden: tuple[int, ...], once: bool, tmp_path: Path
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module = Weighing(hidden, activation, once=once).eval()
        history, candidates = torch.randn(1, 21, DIM), torch.randn(8, DIM)
    _, split = split_of(tmp_path, module, Precision.FP32)
    [found] = passes(split)
    assert [len(layer.weight) for layer in found.layers.layers] == [*hidden, 1]
    left = " ".join(str(node.target) for node in split.program.pair.graph.nodes)
    assert not any(name in left for name in ("prelu", "relu", "sigmoid", "dropout", "mul.Tensor"))
    expected = module(history.expand(8, -1, -1), torch.full((8,), 21), candidates)
    whole = scores(split, history, candidates)
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-5)
    part = scores(split, history, candidates[3:5])
    # The pass has the same bits. Rounding by the number of candidates is that of torch's product of
    # weights and history, behind it.
    torch.testing.assert_close(part, whole[3:5], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("activation", "precision"), [(nn.Tanh, Precision.FP32), (nn.PReLU, Precision.BF16)]
)
def test_other_layers_stay_as_they_are(
    activation: Activation, precision: Precision, tmp_path: Path
) -> None:
    _, split = split_of(tmp_path, Weighing((36,), activation, once=True).eval(), precision)
    assert passes(split) == []
