"""Towers that specs name: a program that is not the spec's is refused with both sides."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from quant.source import TensorSource
from sharded_infer.errors import TowerError
from sharded_infer.precision import Precision
from sharded_infer.spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.tower import export_tower
from sharded_infer.tower_archive import write_program
from sharded_infer.tower_source import load_tower


class OneScore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(13 + 8, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        scores: Tensor = self.layer(torch.cat([dense, embeddings], 1)).squeeze(1)
        return scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    program = export_tower(
        OneScore(),
        dense={"dense": 13},
        embedding_width=8,
        outputs=("score",),
        precision=Precision.FP32,
    )
    write_program(program, folder / "tower.pt2")
    return folder


def load(
    folder: Path, *, dense: dict[str, int], dim: int = 8, outputs: tuple[str, ...] = ("score",)
) -> nn.Module:
    spec = ModelSpec(
        name="m",
        tables=(TableSpec("item", 9, dim),),
        dense=DenseSpec(dense),
        tower=TowerSpec(program="tower.pt2", outputs=outputs),
    )
    return load_tower(spec, TensorSource({"x": torch.zeros(1)}), folder)


def test_a_program_that_is_the_specs_gives_its_outputs_by_name(folder: Path) -> None:
    tower = load(folder, dense={"dense": 13})
    scores = tower(dense=torch.zeros(2, 13), embeddings=torch.zeros(2, 8))
    assert {name: tuple(score.shape) for name, score in scores.items()} == {"score": (2,)}


@pytest.mark.parametrize(
    ("dense", "dim", "outputs", "words"),
    [
        ({"dense": 13}, 8, ("a", "b"), r"it has 1 output, tower.outputs names 2 \(a, b\)"),
        ({"dense": 12}, 8, ("s",), "for 'dense' has a width of 13, dense.inputs says dense = 12"),
        ({"dense": 13}, 4, ("s",), "for 'embeddings' has a width of 8, the dims .* add up to 4"),
        ({}, 8, ("s",), r"it has 2 inputs, dense.inputs and the embeddings are 1 \(embeddings\)"),
        ({"dense": 9, "more": 4}, 8, ("s",), "it has 2 inputs, dense.inputs .* are 3"),
    ],
)
def test_a_program_of_other_inputs_or_outputs_is_refused_with_both_sides(
    folder: Path, dense: dict[str, int], dim: int, outputs: tuple[str, ...], words: str
) -> None:
    with pytest.raises(TowerError, match=rf"tower.pt2: .*{words}"):
        load(folder, dense=dense, dim=dim, outputs=outputs)
