"""Opens a stored tower program and checks it against the expected inputs and outputs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch.fx import GraphModule

from kernels.wording import counted
from sharded_infer.errors import TowerError
from sharded_infer.torch_message import torch_message
from sharded_infer.towers.program.archive import read_program
from sharded_infer.towers.program.graph import NAMES
from sharded_infer.towers.program.names import ProgramNames

__all__ = ["EMBEDDINGS", "Outputs", "open_program", "run_program", "zero_inputs"]

# The name of the last input, after the dense ones.
EMBEDDINGS: Final = "embeddings"
# A run's outputs, and for each output K if it is `[B, K]`, None if it is `[B]`.
Outputs = tuple[tuple[torch.Tensor, ...], tuple[int | None, ...]]
# Not 1, which outputs could have for other reasons. Towers also run at this size.
_BATCH: Final = 4


def open_program(
    path: Path, *, dense: Mapping[str, int], embedding_width: int, outputs: Sequence[str]
) -> GraphModule:
    """Reads a stored program and checks that it is the expected tower.

    Args:
        path: a file of `write_program`; not trusted, none of its code is executed.
        dense: name and width of each dense input, in the program's order.
        embedding_width: width of the program's last input.
        outputs: names of the expected outputs, in order.

    Raises:
        TowerError: the file cannot be read safely, or its inputs or outputs differ.
    """
    program = read_program(path)
    inputs = len(program.graph.find_nodes(op="placeholder"))
    if inputs != len(dense) + 1:
        raise TowerError(
            f"{path}: expected {counted(len(dense) + 1, 'input')} "
            f"({', '.join((*dense, EMBEDDINGS))}), "
            f"the program has {inputs}"
        )
    run_program(program, zero_inputs(dense, embedding_width), outputs, str(path))
    names: ProgramNames = program.meta[NAMES]
    for kind, recorded, expected in (
        ("inputs", names.inputs, (*dense, EMBEDDINGS)),
        ("outputs", names.outputs, tuple(outputs)),
    ):
        if recorded is not None and recorded != expected:
            raise TowerError(
                f"{path}: expected the {kind} {', '.join(expected)}, the program's are "
                f"{', '.join(recorded)}"
            )
    return program


def zero_inputs(
    dense: Mapping[str, int], embedding_width: int, device: torch.device | None = None
) -> list[torch.Tensor]:
    """Zeros to test a tower with, fp32 `[4, width]` each; on the CPU if `device` is None."""
    widths = (*dense.values(), embedding_width)
    return [torch.zeros(_BATCH, width, device=device) for width in widths]


def run_program(
    program: torch.nn.Module, inputs: Sequence[torch.Tensor], outputs: Sequence[str], where: str
) -> Outputs:
    """Runs a program once and checks its outputs.

    Args:
        program: takes the inputs by position.
        inputs: `[B, width]` each.
        outputs: names of the expected outputs.
        where: names the program in messages.

    Raises:
        TowerError: the program fails, or its outputs are not fp32 `[B]` or `[B, K]`.
    """
    batch = inputs[0].shape[0]
    try:
        with torch.inference_mode():
            results = program(*inputs)
    except TowerError:
        raise
    except Exception as error:
        shapes = [list(tensor.shape) for tensor in inputs]
        raise TowerError(
            f"{where} fails on inputs of shapes {shapes}: {torch_message(error)}"
        ) from error
    if len(results) != len(outputs):
        raise TowerError(
            f"{where}: expected {counted(len(outputs), 'output')} "
            f"({', '.join(outputs)}), got {len(results)}"
        )
    widths: list[int | None] = []
    for name, result in zip(outputs, results, strict=True):
        found = f"{result.dtype} {list(result.shape)}" if torch.is_tensor(result) else repr(result)
        if not torch.is_tensor(result) or result.dtype is not torch.float32:
            raise TowerError(f"{where}: output {name!r}: expected an fp32 tensor, got {found}")
        if result.dim() not in (1, 2) or result.shape[0] != batch:
            expected = f"[{batch}] or [{batch}, K]"
            raise TowerError(f"{where}: output {name!r}: expected {expected}, got {found}")
        widths.append(result.shape[1] if result.dim() == 2 else None)
    return results, tuple(widths)
