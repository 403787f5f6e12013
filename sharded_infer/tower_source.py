"""Where a tower comes from when a spec names it: the zoo with trained weights, or a program."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from quant.source import WeightSource
from sharded_infer.errors import SpecError, TowerError, WeightsError
from sharded_infer.spec import ModelSpec
from sharded_infer.tower_archive import read_program
from sharded_infer.zoo.registry import build_tower


class ProgramTower(nn.Module):
    """A stored program as a module that takes its inputs by name."""

    def __init__(self, program: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]):
        """Keeps the program and the names of its positional inputs and outputs."""
        super().__init__()
        self.program = program
        self._inputs = inputs
        self._outputs = outputs

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Runs the program; the outputs by name."""
        results = self.program(*(inputs[name] for name in self._inputs))
        return dict(zip(self._outputs, results, strict=True))


def load_tower(spec: ModelSpec, source: WeightSource, folder: Path) -> nn.Module:
    """Builds the tower that a spec names.

    Args:
        spec: the model; its tower has an architecture or a program.
        source: the checkpoint, which holds the zoo tower's parameters under `tower.weights`.
        folder: what the program's path is relative to.

    Raises:
        SpecError: the spec names no tower, or sizes that the architecture refuses.
        WeightsError: the checkpoint lacks a parameter of the tower, or has another shape of it.
        TowerError: the program cannot be read or must not be loaded.
    """
    described = spec.tower
    if described.program is not None:
        path = folder / described.program
        if not path.is_file():
            raise TowerError(f"tower program {path}: no such file")
        inputs = (*spec.dense.inputs, "embeddings")
        return ProgramTower(read_program(path), inputs, described.outputs)
    if described.architecture is None:
        raise SpecError("tower: expected an architecture of the zoo, or a program's file")
    tower = build_tower(
        described.architecture,
        dense_inputs=spec.dense.inputs,
        feature_dims=[feature.table.dim for feature in spec.features],
        options=described.options,
    )
    tower.load_state_dict(_parameters(tower.state_dict(), source, described.weights))
    return tower


def _parameters(
    wanted: Mapping[str, Tensor], source: WeightSource, prefix: str
) -> dict[str, Tensor]:
    keys = set(source.keys())
    parameters = {}
    for name, parameter in wanted.items():
        key = prefix + name
        if key not in keys:
            raise WeightsError(
                f"tower: {source.description} holds no {key!r}; the prefix {prefix!r} is the "
                "spec's tower.weights"
            )
        if source.shape(key) != tuple(parameter.shape):
            raise WeightsError(
                f"tower: {key!r} in {source.description} is {list(source.shape(key))}, expected "
                f"{list(parameter.shape)}"
            )
        parameters[name] = source.read(key, 0, len(parameter)).to(torch.float32)
    return parameters
