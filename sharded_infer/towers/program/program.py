"""Opens a stored tower program and checks it against the expected inputs and outputs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.fx import GraphModule

from kernels.wording import counted
from sharded_infer.errors import TowerError
from sharded_infer.torch_message import in_submodule, torch_message
from sharded_infer.towers.program.archive import read_program
from sharded_infer.towers.program.graph import NAMES
from sharded_infer.towers.program.names import ProgramNames, check_sequences
from sharded_infer.towers.program.size_limit import MOST_BYTES, BoundedProgram
from sharded_infer.towers.program.tower_inputs import ZEROS_BATCH, TowerInputs

# A run's outputs, and for each output K if it is `[B, K]`, None if it is `[B]`.
Outputs = tuple[tuple[torch.Tensor, ...], tuple[int | None, ...]]


def open_program(
    path: Path, inputs: TowerInputs, outputs: Sequence[str]
) -> tuple[GraphModule, int]:
    """Reads a stored program and checks that it is the expected tower.

    Returns the program, and the samples whose results take at most `MOST_BYTES` as it stands.

    Args:
        path: a file of `write_program`; not trusted, none of its code is executed.
        outputs: names of the expected outputs, in order.

    Raises:
        TowerError: the file cannot be read safely, its inputs or outputs differ, or it does not run
            at the shortest or the longest sequences.
    """
    program = read_program(path)
    found = len(program.graph.find_nodes(op="placeholder"))
    if found != len(inputs.names):
        raise TowerError(
            f"{path}: expected {counted(len(inputs.names), 'input')} "
            f"({', '.join(inputs.names)}), "
            f"the program has {found}"
        )
    names: ProgramNames = program.meta[NAMES]
    check_sequences(names.sequences, inputs.sequences, str(path))
    bounded = BoundedProgram(program, str(path))
    for lengths in dict.fromkeys((inputs.lengths(1), inputs.longest)):
        run_program(bounded, inputs.zeros(lengths), outputs, str(path))
    for kind, recorded, expected in (
        ("inputs", names.inputs, inputs.names),
        ("outputs", names.outputs, tuple(outputs)),
    ):
        if recorded is not None and recorded != expected:
            raise TowerError(
                f"{path}: expected the {kind} {', '.join(expected)}, the program's are "
                f"{', '.join(recorded)}"
            )
    return program, ZEROS_BATCH * MOST_BYTES // max(1, bounded.most_bytes)


def run_program(
    program: Callable[..., tuple[torch.Tensor, ...]],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[str],
    where: str,
) -> Outputs:
    """Runs a program once on `[B, ...]` inputs by position and checks its outputs.

    Raises:
        TowerError: the program fails, or its outputs are not fp32 `[B]` or `[B, K]`. Names `where`.
    """
    batch = inputs[0].shape[0]
    try:
        with torch.inference_mode():
            results = program(*inputs)
    except TowerError:
        raise
    except Exception as error:
        shapes = [list(tensor.shape) for tensor in inputs]
        # The module in a wrapper for export has its own names.
        root = getattr(program, "tower", program)
        part = in_submodule(root, error) if isinstance(root, torch.nn.Module) else ""
        raise TowerError(
            f"{where} fails on inputs of shapes {shapes}{part}: {torch_message(error)}"
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
