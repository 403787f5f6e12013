"""A trained module as torch exports it: its inputs by position, its outputs in declared order."""

import inspect
from collections.abc import Sequence

import torch

from sharded_infer.errors import TowerError
from sharded_infer.towers.program.tower_inputs import EMBEDDINGS, TowerInputs


class NamedTower(torch.nn.Module):
    """The module with positional inputs, and its outputs as a tuple in their declared order."""

    def __init__(self, tower: torch.nn.Module, inputs: TowerInputs, outputs: Sequence[str]) -> None:
        super().__init__()
        self.tower = tower
        self._inputs = inputs.names
        self._outputs = tuple(outputs)
        self._left_out = set(inputs.names) - _accepted(tower, inputs)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the module; raises TowerError if it returns other outputs."""
        named = zip(self._inputs, inputs, strict=True)
        result = self.tower(**{name: one for name, one in named if name not in self._left_out})
        if isinstance(result, torch.Tensor) and len(self._outputs) == 1:
            return (result,)
        if isinstance(result, dict) and set(result) == set(self._outputs):
            return tuple(result[name] for name in self._outputs)
        got = sorted(result) if isinstance(result, dict) else f"a {type(result).__name__}"
        raise TowerError(
            f"expected the outputs {sorted(self._outputs)} (tower.outputs), the module returned "
            f"{got}"
        )


def check_names(module: torch.nn.Module, inputs: TowerInputs, outputs: Sequence[str]) -> None:
    """Raises TowerError when outputs' names repeat or `forward` does not take the inputs."""
    if not outputs or len(set(outputs)) != len(outputs):
        raise TowerError(f"expected distinct output names, at least one, got {list(outputs)}")
    given, accepted = set(inputs.names), _accepted(module, inputs)
    needed = given if inputs.embedding_width else given - {EMBEDDINGS}
    if unknown := sorted(needed - accepted):
        raise TowerError(f"forward does not accept {unknown}; it accepts {sorted(accepted)}")
    parameters = inspect.signature(module.forward).parameters.values()
    required = {p.name for p in parameters if p.name in accepted and p.default is p.empty}
    if missing := sorted(required - given):
        raise TowerError(f"forward requires {missing}; the inputs are {sorted(given)}")


def _accepted(module: torch.nn.Module, inputs: TowerInputs) -> set[str]:
    parameters = inspect.signature(module.forward).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    accepted = {p.name for p in parameters if p.kind in by_name}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        accepted |= set(inputs.names)
    return accepted
