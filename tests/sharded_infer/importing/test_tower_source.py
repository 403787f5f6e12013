from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quant.sources.weight_source import TensorSource
from sharded_infer.errors import TowerError
from sharded_infer.importing.tower_source import ProgramTower, load_tower
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.tower import Tower, export_tower


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
    sizes: dict[str, Any] = {"dense": {"dense": 13}, "embedding_width": 8, "outputs": ("score",)}
    program = export_tower(OneScore(), **sizes, precision=Precision.FP32)
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


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"outputs": ("s",)}, "its outputs are score, tower.outputs names s"),
        ({"outputs": ("a", "b")}, r"it has 1 output, tower.outputs names 2 \(a, b\)"),
        ({"dense": {"dense": 12}}, "for 'dense' has a width of 13, dense.inputs says dense = 12"),
        ({"dim": 4}, "for 'embeddings' has a width of 8, the dims .* add up to 4: [a-z]+ 4$"),
        ({"dense": {}}, r"it has 2 inputs, dense.inputs and the embeddings are 1 \(embeddings\)"),
        ({"dense": {"other": 13}}, "inputs are dense, embeddings, dense.inputs .* are other, em"),
    ],
)
def test_a_program_of_other_inputs_or_outputs_is_refused_with_both_sides(
    folder: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(TowerError, match=rf"tower.pt2: .*{words}"):
        load(folder, **{"dense": {"dense": 13}, **changed})


class TwoCounts(nn.Module):
    """Distinguishes a user's numbers from an item's of equal width."""

    def forward(self, user_num: Tensor, item_num: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        embedded = embeddings.sum(1)
        return {"click": user_num.sum(1) - 3 * item_num.sum(1) + embedded, "like": embedded}


class Positional(nn.Module):
    """As `forward(*inputs)`: how export_tower exported before it recorded names."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(TwoCounts()(*inputs).values())


class Grouped(nn.Module):
    def forward(self, dense: dict[str, Tensor], *, embeddings: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = TwoCounts()(**dense, embeddings=embeddings)
        return found


INPUTS = {
    "user_num": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "item_num": torch.tensor([[5.0, 6.0], [7.0, 8.0]]),
    "embeddings": torch.ones(2, 8),
}
BATCH = torch.export.Dim("batch", min=1)


def recorded(path: Path) -> None:
    sizes: dict[str, Any] = {"dense": {"user_num": 2, "item_num": 2}, "embedding_width": 8}
    names = ("click", "like")
    program = export_tower(TwoCounts(), **sizes, outputs=names, precision=Precision.FP32)
    write_program(program, path)


def by_argument(path: Path) -> None:
    shapes = {name: {0: BATCH} for name in INPUTS}
    program = torch.export.export(TwoCounts(), (), dict(INPUTS), dynamic_shapes=shapes)
    torch.export.save(program, path)


def by_key(path: Path) -> None:
    dense = {name: INPUTS[name] for name in ("user_num", "item_num")}
    shapes = {"dense": {name: {0: BATCH} for name in dense}, "embeddings": {0: BATCH}}
    named = {"embeddings": INPUTS["embeddings"]}
    torch.export.save(torch.export.export(Grouped(), (dense,), named, dynamic_shapes=shapes), path)


def unnamed(path: Path) -> None:
    shapes = (({0: BATCH},) * 3,)
    program = torch.export.export(Positional(), tuple(INPUTS.values()), dynamic_shapes=shapes)
    write_program(program, path)


@pytest.mark.parametrize("write", [recorded, by_argument, by_key])
def test_a_programs_inputs_and_outputs_are_bound_by_name_whatever_the_specs_order(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path / "tower.pt2")
    tower = load(tmp_path, dense={"item_num": 2, "user_num": 2}, outputs=("like", "click"))
    assert isinstance(tower, ProgramTower)
    assert tower.names_inputs
    scores = tower(**INPUTS)
    expected = TwoCounts()(**INPUTS)
    assert {name: score.tolist() for name, score in scores.items()} == {
        name: score.tolist() for name, score in expected.items()
    }
    for wrong in ({"item_num": 2, "user": 2}, {"item_num": 2, "embedded": 2}):
        with pytest.raises(TowerError, match="inputs are user_num, item_num, embeddings, dense"):
            load(tmp_path, dense=wrong, outputs=("like", "click"))
    with pytest.raises(TowerError, match="outputs are click, like, tower.outputs names like, buy"):
        load(tmp_path, dense={"item_num": 2, "user_num": 2}, outputs=("like", "buy"))


def test_a_program_without_names_is_refused_where_inputs_could_be_confused(tmp_path: Path) -> None:
    unnamed(tmp_path / "tower.pt2")
    with pytest.raises(TowerError, match="'item_num' and 'user_num' of dense.inputs are both 2"):
        load(tmp_path, dense={"item_num": 2, "user_num": 2}, outputs=("click", "like"))


def test_a_program_without_names_is_bound_by_position_and_says_so(tmp_path: Path) -> None:
    shapes = (({0: BATCH},) * 3,)
    inputs = (torch.ones(2, 3), torch.ones(2, 2), torch.ones(2, 8))
    program = torch.export.export(Positional(), inputs, dynamic_shapes=shapes)
    write_program(program, tmp_path / "tower.pt2")
    tower = load(tmp_path, dense={"user_num": 3, "item_num": 2}, outputs=("click", "like"))
    assert isinstance(tower, ProgramTower)
    assert not tower.names_inputs
    with pytest.raises(TowerError, match="its input for 'item_num' has a width of 3, dense.inputs"):
        load(tmp_path, dense={"item_num": 2, "user_num": 3}, outputs=("click", "like"))


def test_a_stored_tower_of_other_names_is_not_served(tmp_path: Path) -> None:
    path = tmp_path / "tower.pt2"

    def opened(*dense: str, outputs: tuple[str, ...] = ("click", "like")) -> None:
        Tower.load(path, dense=dict.fromkeys(dense, 2), embedding_width=8, outputs=outputs)

    recorded(path)
    with pytest.raises(TowerError, match="expected the inputs item_num, user_num, embeddings, the"):
        opened("item_num", "user_num")
    with pytest.raises(TowerError, match="expected the outputs like, click, the program's are"):
        opened("user_num", "item_num", outputs=("like", "click"))
    unnamed(path)
    opened("item_num", "user_num")
