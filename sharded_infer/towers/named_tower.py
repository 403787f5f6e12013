"""A trained module as torch exports it.

A copy on the CPU, for inference, with plain weights. Its inputs come by position, its outputs in
their declared order.
"""

import copy
import inspect
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.utils import parametrize

from sharded_infer.errors import TowerError
from sharded_infer.torch_message import in_submodule, torch_message
from sharded_infer.towers.program.tower_inputs import EMBEDDINGS, TowerInputs

# They ask a mask's values whether it is causal, which export cannot answer. With False, they read
# it as any other mask. The argument's name and position:
_DETECTING: Final = {
    nn.TransformerEncoder: ("is_causal", 3),
    nn.TransformerDecoder: ("tgt_is_causal", 6),
}


class NamedTower(nn.Module):
    """The module with positional inputs, and its outputs as a tuple in their declared order."""

    def __init__(self, tower: nn.Module, inputs: TowerInputs, outputs: Sequence[str]) -> None:
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


def check_names(module: nn.Module, inputs: TowerInputs, outputs: Sequence[str]) -> None:
    """Raises TowerError when outputs' names repeat or `forward` does not take the inputs."""
    if not outputs or len(set(outputs)) != len(outputs):
        raise TowerError(f"expected distinct output names, at least one, got {list(outputs)}")
    given, accepted = set(inputs.names), _accepted(module, inputs)
    needed = given if inputs.embedding_width else given - {EMBEDDINGS}
    if unknown := sorted(needed - accepted):
        raise TowerError(f"forward does not accept {unknown}; it accepts {sorted(accepted)}")
    parameters = _parameters(module)
    required = {p.name for p in parameters if p.name in accepted and p.default is p.empty}
    if missing := sorted(required - given):
        raise TowerError(f"forward requires {missing}; the inputs are {sorted(given)}")


def _accepted(module: nn.Module, inputs: TowerInputs) -> set[str]:
    parameters = _parameters(module)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    accepted = {p.name for p in parameters if p.kind in by_name}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        accepted |= set(inputs.names)
    return accepted


def _parameters(module: object) -> Sequence[inspect.Parameter]:
    """Parameters of `forward`; TowerError for what is no tower."""
    if isinstance(module, nn.Module):
        with suppress(ValueError):  # a traced module has none
            return tuple(inspect.signature(module.forward).parameters.values())
    kind = type(module).__name__
    came = f"{'an' if kind[0] in 'AEIO' else 'a'} {kind}"
    if module is None or isinstance(module, type):
        came = repr(module)
    raise TowerError(
        "tower: expected an nn.Module whose forward takes the inputs by name, neither traced nor "
        f"exported, got {came}"
    )


def copy_for_export(module: nn.Module, sharing: Iterable[torch.Tensor] = ()) -> nn.Module:
    """A copy of a module in eval mode on the CPU, without gradients.

    The copy has no copies of the parameters `sharing`.

    Weights that are computed from others (`weight_norm`, `spectral_norm`, `prune` and other
    parametrizations) are computed once, so that their products can be packed and lowered.

    Raises:
        TowerError: it is scripted or quantized, or cannot be copied; names the submodule.
    """
    for name, child in module.named_modules():
        held = (child, *vars(child).values())
        if any(isinstance(value, torch.jit.ScriptModule | torch.ScriptObject) for value in held):
            raise TowerError(
                f"the module cannot be exported: {f'submodule {name!r}' if name else 'it'} is "
                f"scripted or quantized ({getattr(child, 'original_name', type(child).__name__)}); "
                "use the nn.Module that it was made of"
            )
    # Computed weights are not leaves of a graph of gradients, which torch refuses to copy.
    computed: dict[int, Any] = {
        id(value): value.detach().clone()
        for child in module.modules()
        for value in vars(child).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    computed |= {id(weight): nn.Parameter(weight.detach(), False) for weight in sharing}
    copied = module
    try:
        copied = copy.deepcopy(module, computed)
        copied.cpu().eval()
        for child in copied.modules():
            _prepare(child)
        return copied
    except Exception as error:
        raise TowerError(
            f"the module cannot be copied{in_submodule(copied, error)}: {torch_message(error)}"
        ) from error


def _prepare(module: nn.Module) -> None:
    _fold(module)
    for kind, (name, position) in _DETECTING.items():
        if isinstance(module, kind):
            hook = partial(_with_default, name=name, position=position)
            module.register_forward_pre_hook(hook, with_kwargs=True)
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad_(False)


def _with_default(
    _: nn.Module, args: tuple[Any, ...], named: dict[str, Any], *, name: str, position: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call, with False for one that the caller left out."""
    return args, named if len(args) > position else {name: False} | named


def _fold(module: nn.Module) -> None:
    if parametrize.is_parametrized(module):
        weights = {name: getattr(module, name).detach() for name in module.parametrizations}  # type: ignore[union-attr]
        # Not remove_parametrizations: it takes the weight from the class, which the original has.
        module.__class__ = type(module).__bases__[0]
        del module.parametrizations
        for name, weight in weights.items():
            setattr(module, name, nn.Parameter(weight))
    for key, hook in list(module._forward_pre_hooks.items()):
        # weight_norm, spectral_norm and prune compute `module.<name>` in a hook before each call.
        name = getattr(hook, "name", getattr(hook, "_tensor_name", None))
        if not type(hook).__module__.startswith("torch.nn.utils.") or not isinstance(name, str):
            continue
        with torch.no_grad():
            hook(module, ())
        del module._forward_pre_hooks[key]
        weight = getattr(module, name).detach()
        vars(module).pop(name, None)
        module._buffers.pop(name, None)
        # Not register_parameter: recurrent layers keep a list of their weights up to date here.
        setattr(module, name, nn.Parameter(weight))
