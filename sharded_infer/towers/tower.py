"""The tower: exported from a module to a program, and a stored program as a callable."""

import hashlib
import inspect
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import torch

from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.torch_message import torch_message
from sharded_infer.towers.lowering.compiled_products import compiled_dtypes, join_crosses
from sharded_infer.towers.lowering.decomposition import decompose
from sharded_infer.towers.lowering.fused_steps import fuse_steps
from sharded_infer.towers.lowering.int8 import lower_to_int8
from sharded_infer.towers.lowering.int8_packing import pack_int8_products
from sharded_infer.towers.lowering.packing import pack_products
from sharded_infer.towers.lowering.precision import copy_program, lower_precision
from sharded_infer.towers.lowering.tf32 import emulate_tf32
from sharded_infer.towers.program.archive import pack_program, read_packed
from sharded_infer.towers.program.names import record_names
from sharded_infer.towers.program.program import EMBEDDINGS, open_program, run_program, zero_inputs
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.split_tower import SplitTower, check_split
from sharded_infer.towers.split.splitting import split_program
from sharded_infer.towers.tower_copy import copy_for_export

# Batches that find a specialised batch size: one, two and an odd one.
_VERIFIED_BATCHES: Final = (1, 2, 7)
_TRACED_BATCH: Final = 7
# The program runs the module's own kernels; only fusions inside torch may round differently.
_RELATIVE_TOLERANCE: Final = 1e-4
_ABSOLUTE_TOLERANCE: Final = 1e-5


_LOW_DTYPES: Final = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True, slots=True, eq=False)
class Tower:
    """A loaded tower.

    `output_widths` has K for each output `[B, K]` and None for each `[B]`.
    """

    program: torch.fx.GraphModule
    output_widths: tuple[int | None, ...]
    # The same weights and products before they were fused with the steps between them.
    unfused: torch.fx.GraphModule
    input_widths: tuple[int, ...]

    def __del__(self) -> None:
        # A graph's nodes refer to each other: without this its weights would stay until a full
        # collection, which a server puts off for ever.
        vars(self.program).clear()
        vars(self.unfused).clear()

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        dense: Mapping[str, int],
        embedding_width: int,
        outputs: Sequence[str],
        tf32: bool = False,
    ) -> Self:
        """Loads a stored program and checks that it is the expected tower.

        Args:
            path: a file of `write_program`; not trusted, none of its code is run.
            dense: name and width of each dense input, in the program's order.
            embedding_width: the width of the program's last input.
            tf32: whether to compute inner products as a CUDA device does in TF32, slowly.

        Raises:
            TowerError: the file is not a safe program, or has other inputs or outputs, by number or
                by recorded name. Or it fails on zeros, or returns other than fp32 `[B]` or
                `[B, K]`.
        """
        program = open_program(path, dense=dense, embedding_width=embedding_width, outputs=outputs)
        zeros = zero_inputs(dense, embedding_width)
        if tf32:
            emulate_tf32(program)
        compiled = compiled_dtypes(program)
        pack_int8_products(program, compiled=torch.int8 in compiled)
        pack_products(program, compiled)
        unfused = copy_program(program)
        fuse_steps(program, zeros)
        join_crosses(program)
        widths = run_program(program, zeros, outputs, str(path))[1]
        return cls(program, widths, unfused, (*dense.values(), embedding_width))

    def split(self, runs: Sequence[Run]) -> SplitTower | None:
        """The tower for requests that send some features once for all their pairs.

        Args:
            runs: which columns of the embeddings such a request has once.

        Returns:
            None if no product would be computed less often.

        Raises:
            TowerError: the program cannot be split, or its parts score otherwise.
        """
        try:
            program = split_program(self.unfused, self.input_widths, runs)
        except Exception as error:
            raise TowerError(f"the tower cannot be split: {torch_message(error)}") from error
        if program is None:
            return None
        split = SplitTower(program)
        check_split(split, self, self.input_widths, runs)
        return split

    def signature(self) -> str:
        """A hash of its operators and of its weights' shapes: what kernels are compiled for."""
        weights = (*self.program.named_parameters(), *self.program.named_buffers())
        shapes = [(name, str(weight.dtype), list(weight.shape)) for name, weight in weights]
        text = f"{self.program.code}\n{sorted(shapes)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def __call__(
        self, dense: Sequence[torch.Tensor], embeddings: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Scores a batch; any number of threads may call at once.

        Args:
            dense: fp32 `[B, width]` each, in the order given to `load`.
            embeddings: fp32 `[B, embedding_width]`.

        Returns:
            fp32 `[B]` or `[B, K]` for each output; the inputs are trusted.
        """
        with torch.inference_mode():
            # Export may have turned a reshape into a view, which only contiguous inputs allow.
            inputs = [tensor.contiguous() for tensor in (*dense, embeddings)]
            result: tuple[torch.Tensor, ...] = self.program(*inputs)
            return result


def export_tower(
    module: torch.nn.Module,
    *,
    dense: Mapping[str, int],
    embedding_width: int,
    outputs: Sequence[str],
    precision: Precision,
    calibration: Sequence[torch.Tensor] | None = None,
    embedding_text: str = "",
) -> torch.export.ExportedProgram:
    """Exports a trained module as the program that an artifact stores.

    Args:
        module: its `forward` takes fp32 `[B, width]` for each dense input by name and fp32
            `[B, embedding_width]` as `embeddings`, and returns an fp32 tensor `[B]` or `[B, K]`,
            or a dict of them by output name. It is not changed: a copy is exported, on the CPU
            and in eval mode.
        dense: name and width of each dense input.
        outputs: the names of the outputs, in the order in which the program returns them.
        precision: of the inner matrix products.
        calibration: samples of the inputs, fp32 `[S, width]` each, in the program's order; int8
            needs them.
        embedding_text: the embeddings' features and tables, for errors.

    Returns:
        A program for any batch of at least one sample. It takes the dense inputs in their order,
        then the embeddings, all by position, and returns a tuple of fp32 tensors. It has been run
        against the module, and holds only operators that a tower may call.

    Raises:
        TowerError: the module does not fit this description, cannot be exported for every batch
            size, calls an operator that is not allowed, or differs from its program.
    """
    _check_names(module, dense, outputs)
    widths = (*dense.values(), embedding_width)
    if any(width < 1 for width in widths):
        raise TowerError(f"expected inputs of width 1 or more, got {widths}")
    names = (*dense, EMBEDDINGS), tuple(outputs)
    named = _NamedTower(copy_for_export(module), *names)
    samples = [_sample(batch, widths) for batch in _VERIFIED_BATCHES]
    inputs = ", ".join(f"{name} {width}" for name, width in dense.items()) or "none"
    made_of = f": {embedding_text}" if embedding_text else ""
    where = f"the module (dense.inputs: {inputs}; embeddings {embedding_width}{made_of})"
    expected = [run_program(named, sample, outputs, where)[0] for sample in samples]
    program = _export(named, widths, names)
    stored = read_packed(io.BytesIO(pack_program(program)), "the exported tower")
    for sample, wanted in zip(samples, expected, strict=True):
        _check_close(run_program(stored, sample, outputs, "the program")[0], wanted, outputs)
    if precision in (Precision.FP32, Precision.TF32):
        return program
    if precision is not Precision.INT8:
        program = _export(lower_precision(program.module(), _LOW_DTYPES[precision]), widths, names)
    elif calibration is not None:
        program = _export(lower_to_int8(program.module(), calibration), widths, names)
    else:
        raise TowerError("an int8 tower: expected samples to choose its integers from, got none")
    stored = read_packed(io.BytesIO(pack_program(program)), f"the {precision} tower")
    for sample in samples:
        run_program(stored, sample, outputs, f"the {precision} program")
    return program


class _NamedTower(torch.nn.Module):
    """The module with positional inputs, and its outputs as a tuple in their declared order."""

    def __init__(
        self, tower: torch.nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.tower = tower
        self._inputs = inputs
        self._outputs = outputs

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.tower(**dict(zip(self._inputs, inputs, strict=True)))
        if isinstance(result, torch.Tensor) and len(self._outputs) == 1:
            return (result,)
        if isinstance(result, dict) and set(result) == set(self._outputs):
            return tuple(result[name] for name in self._outputs)
        got = sorted(result) if isinstance(result, dict) else f"a {type(result).__name__}"
        raise TowerError(
            f"expected the outputs {sorted(self._outputs)} (tower.outputs), the module returned "
            f"{got}"
        )


def _check_names(module: torch.nn.Module, dense: Mapping[str, int], outputs: Sequence[str]) -> None:
    """Raises TowerError when the names repeat or are not those that `forward` takes."""
    if not outputs or len(set(outputs)) != len(outputs):
        raise TowerError(f"expected distinct output names, at least one, got {list(outputs)}")
    if EMBEDDINGS in dense:
        raise TowerError(f"a dense input cannot have the name {EMBEDDINGS!r}")
    parameters = inspect.signature(module.forward).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    accepted = {p.name for p in parameters if p.kind in by_name}
    required = {p.name for p in parameters if p.name in accepted and p.default is p.empty}
    given = {*dense, EMBEDDINGS}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        accepted |= given
    if unknown := sorted(given - accepted):
        raise TowerError(f"forward does not accept {unknown}; it accepts {sorted(accepted)}")
    if missing := sorted(required - given):
        raise TowerError(f"forward requires {missing}; the inputs are {sorted(given)}")


def _sample(batch: int, widths: Sequence[int]) -> list[torch.Tensor]:
    """Random inputs, fp32 `[batch, width]` each, the same at every call."""
    generator = torch.Generator().manual_seed(batch)
    return [torch.randn(batch, width, generator=generator) for width in widths]


def _export(
    module: torch.nn.Module, widths: Sequence[int], names: tuple[tuple[str, ...], tuple[str, ...]]
) -> torch.export.ExportedProgram:
    """Exports `module` for every batch size; raises TowerError, chained, when torch cannot.

    Args:
        module: takes its inputs by position.
        names: of the inputs and of the outputs, which the program records.
    """
    batch = torch.export.Dim("batch", min=1)
    shapes = (tuple({0: batch} for _ in widths),)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Recurrent layers keep a list of their weights, which torch's tracing fills anew.
            warnings.filterwarnings("ignore", ".*_flat_weights", UserWarning)
            inputs = tuple(_sample(_TRACED_BATCH, widths))
            program = decompose(torch.export.export(module, inputs, dynamic_shapes=shapes))
            return record_names(program, *names)
    except TowerError:
        raise
    except Exception as error:
        reason = torch_message(error)
        if "data-dependent" in reason:
            reason += " (a tower cannot branch on values: use torch.where and a mask)"
        message = f"torch cannot export the tower for every batch size: {reason}"
        raise TowerError(message) from error


def _check_close(
    results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], outputs: Sequence[str]
) -> None:
    """Raises TowerError when the program's outputs are not those of the module."""
    for name, result, wanted in zip(outputs, results, expected, strict=True):
        if result.shape != wanted.shape or not torch.allclose(
            result, wanted, rtol=_RELATIVE_TOLERANCE, atol=_ABSOLUTE_TOLERANCE, equal_nan=True
        ):
            raise TowerError(
                f"output {name!r} of the program differs from the module's on a batch of "
                f"{wanted.shape[0]}: is the module random, or does it depend on the batch?"
            )
