"""Comparison of a program with the module that it was exported from."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.export import ExportedProgram

from sharded_infer.errors import TowerError
from sharded_infer.towers.program.tower_inputs import TowerInputs

# Sizes that expose a specialised batch size or length: one, two and an odd one.
_BATCHES: Final = (1, 2, 7)
_LENGTHS: Final = (1, 2, 5)
# The program runs the module's own kernels; only fusions inside torch may round differently.
_RELATIVE_TOLERANCE: Final = 1e-4
_ABSOLUTE_TOLERANCE: Final = 1e-5
_ASSERTION: Final = torch.ops.aten._assert_scalar.default


def module_samples(inputs: TowerInputs) -> list[list[Tensor]]:
    """Random inputs of several batch sizes and lengths, the longest among them."""
    sizes = [*zip(_BATCHES, map(inputs.lengths, _LENGTHS), strict=True)]
    if inputs.sequences:
        sizes.append((_BATCHES[1], inputs.longest))
    return [inputs.samples(batch, lengths) for batch, lengths in sizes]


def check_close(
    results: Sequence[Tensor],
    expected: Sequence[Tensor],
    outputs: Sequence[str],
    *,
    empty: Tensor,
) -> None:
    """Raises TowerError when the program's outputs are not those of the module.

    Args:
        empty: bool `[B]`, the samples with a sequence of no positions. torch's attention gives NaN
            or zeros for them, by the kernel: where the module gives NaN, nothing is compared.
    """
    for name, result, wanted in zip(outputs, results, expected, strict=True):
        if result.shape == wanted.shape:
            undefined = empty.view(-1, *[1] * (wanted.dim() - 1)) & wanted.isnan()
            result = torch.where(undefined, wanted, result)
        if result.shape != wanted.shape or not torch.allclose(
            result, wanted, rtol=_RELATIVE_TOLERANCE, atol=_ABSOLUTE_TOLERANCE, equal_nan=True
        ):
            raise TowerError(
                f"output {name!r} of the program differs from the module's on a batch of "
                f"{wanted.shape[0]}: is the module random, or does it depend on the batch?"
            )


def fixed_instead(name: str) -> str:
    """Advice for a module that takes only one length of a sequence."""
    return f'set sequences.{name}.pad_to = "max_length" if the module is meant for one length'


def check_assumptions(program: ExportedProgram, inputs: TowerInputs) -> None:
    """Checks torch's assumptions for all sizes, as a stored program no longer does.

    Args:
        program: as torch.export returned it, with its assertions.

    Raises:
        TowerError: an assumption is wrong for a length or a number of samples.
    """
    roles = _roles(program, inputs)
    for node in program.graph.find_nodes(op="call_function", target=_ASSERTION):
        assumed = getattr(node.args[0].meta.get("val"), "node", None)
        if assumed is None or not set(assumed.expr.free_symbols) <= set(roles):
            continue
        found = {roles[symbol] for symbol in assumed.expr.free_symbols}
        for batch in _BATCHES if found == {None} else ():
            if not bool(assumed.expr.xreplace(dict.fromkeys(roles, batch))):
                raise TowerError(f"the module does not take {batch} samples: {assumed.expr} fails")
        for number, name in enumerate(inputs.sequences):
            if number not in found:
                continue
            for length in range(max(1, inputs.shortest[number]), inputs.longest[number] + 1):
                lengths = inputs.lengths(length)
                for batch in _BATCHES:
                    sizes = {s: batch if r is None else lengths[r] for s, r in roles.items()}
                    if not bool(assumed.expr.xreplace(sizes)):
                        raise TowerError(
                            f"the module does not take every length of {name!r}: at {length} "
                            f"{assumed.expr} is not true ({fixed_instead(name)})"
                        )


def _roles(program: ExportedProgram, inputs: TowerInputs) -> Mapping[Any, int | None]:
    """For each symbol of a size, the number of the sequence whose length it is; None: samples."""
    names = program.graph_signature.user_inputs
    by_name = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    roles: dict[Any, int | None] = {}
    for name, sizes in zip(names, inputs.roles, strict=True):
        for size, role in zip(by_name[name].meta["val"].shape, sizes, strict=False):
            if isinstance(size, torch.SymInt):
                roles |= dict.fromkeys(size.node.expr.free_symbols, role)
    return roles
