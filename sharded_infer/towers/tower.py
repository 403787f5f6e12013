"""The tower: exported from a module to a program, and a stored program as a callable."""

import hashlib
import io
import warnings
from bisect import bisect_left
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.product import product_dtypes
from sharded_infer.errors import InternalError, TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.torch_message import in_submodule, torch_message
from sharded_infer.towers.lowering.canonical_forms import (
    drop_whole_slices,
    fold_weights,
    multiply_pointwise,
)
from sharded_infer.towers.lowering.compiled_products import join_crosses
from sharded_infer.towers.lowering.decomposition import decompose
from sharded_infer.towers.lowering.fp32 import compute_in_fp32
from sharded_infer.towers.lowering.fused_steps import fuse_steps
from sharded_infer.towers.lowering.int8 import lower_to_int8
from sharded_infer.towers.lowering.int8_packing import pack_int8_products
from sharded_infer.towers.lowering.packing import pack_products
from sharded_infer.towers.lowering.precision import copy_program, lower_precision
from sharded_infer.towers.lowering.sequences.attention import fuse_attention
from sharded_infer.towers.lowering.tf32 import emulate_tf32
from sharded_infer.towers.named_tower import NamedTower, check_names, copy_for_export
from sharded_infer.towers.program.archive import pack_program, read_packed
from sharded_infer.towers.program.names import record_names
from sharded_infer.towers.program.program import open_program, run_program
from sharded_infer.towers.program.tower_inputs import TowerInputs, length_symbol
from sharded_infer.towers.program_check import (
    check_assumptions,
    check_close,
    fixed_instead,
    module_samples,
)
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.split_tower import SplitTower, check_split
from sharded_infer.towers.split.splitting import SplitProgram, split_program
from sharded_infer.towers.split.user_split import UserSplit, check_user_split, user_split

# Neither 1 nor 2, which torch may take for constants.
_TRACED_BATCH: Final = 7
_TRACED_LENGTH: Final = 5
_MOST_TRIED: Final = 16  # consecutive lengths, where a module fails
_NO_SEQUENCES: Final[Mapping[str, SequenceInput]] = MappingProxyType({})
_LOW_DTYPES: Final = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True, slots=True, eq=False)
class Tower:
    """A loaded tower.

    Attributes:
        output_widths: K for each output `[B, K]` and None for each `[B]`.
        samples: whose results take at most 4 GiB in the stored program, which fuses nothing.
    """

    program: torch.fx.GraphModule
    output_widths: tuple[int | None, ...]
    # The same weights and products before they were fused with the steps between them.
    unfused: torch.fx.GraphModule
    inputs: TowerInputs
    samples: int

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
        sequences: Mapping[str, SequenceInput] = _NO_SEQUENCES,
        tf32: bool = False,
        in_fp32: bool = False,
    ) -> Self:
        """Loads a stored program and checks that it is the expected tower.

        Args:
            path: a file of `write_program`; not trusted, none of its code is run.
            dense: name and width of each dense input, in the program's order.
            embedding_width: the width of the program's last input.
            sequences: by name, in the program's order.
            tf32: compute inner products as a CUDA device does in TF32, slowly.
            in_fp32: compute products of a low precision in fp32.

        Raises:
            TowerError: the file is not a safe program, or has other inputs or outputs, by number or
                by recorded name, or was exported for other sequences. Or it fails on zeros, or
                returns other than fp32 `[B]` or `[B, K]`.
        """
        inputs = TowerInputs(dense, embedding_width, sequences)
        program, samples = open_program(path, inputs, outputs)
        zeros = inputs.zeros(inputs.lengths(_TRACED_LENGTH))
        if in_fp32:
            compute_in_fp32(program, zeros)
        if sequences:
            fold_weights(program)
            drop_whole_slices(program)
            multiply_pointwise(program)
        if tf32:
            emulate_tf32(program)
        compiled = product_dtypes()
        pack_int8_products(program, compiled=torch.int8 in compiled)
        pack_products(program, compiled)
        unfused = copy_program(program)
        if sequences:
            fuse_attention(program)
        fuse_steps(program, zeros)
        join_crosses(program)
        widths = run_program(program, zeros, outputs, str(path))[1]
        return cls(program, widths, unfused, inputs, samples)

    def split(self, runs: Sequence[Run]) -> SplitTower | None:
        """The tower for requests that send some features once; None if no product is saved.

        Args:
            runs: columns of the embeddings by request and by pair.

        Raises:
            TowerError: the program cannot be split, or its parts score otherwise.
        """
        program = self._split(runs, None)
        if program is None:
            return None
        split = SplitTower(program)
        check_split(split, self, self.inputs)
        return split

    def split_user(self, names: Container[str], runs: Sequence[Run]) -> UserSplit:
        """The tower in two stages, for requests that send their user's inputs once.

        Args:
            names: the user's dense inputs and sequences; the latter's lengths and companions
                follow.
            runs: columns of the embeddings by request and by pair.

        Raises:
            TowerError: the program cannot be split, or its stages score otherwise.
        """
        shared = self.inputs.all_of(names)
        program = self._split(runs, shared)
        if program is None:
            raise InternalError("a tower was not split for its user's inputs")
        split = user_split(program, self.inputs, shared)
        check_user_split(split, self, self.inputs)
        return split

    def _split(self, runs: Sequence[Run], shared: Container[str] | None) -> SplitProgram | None:
        try:
            return split_program(self.unfused, self.inputs, runs, shared)
        except Exception as error:
            raise TowerError(f"the tower cannot be split: {torch_message(error)}") from error

    def signature(self) -> str:
        """Hash of its operators and its weights' shapes, for which kernels are compiled."""
        weights = (*self.program.named_parameters(), *self.program.named_buffers())
        shapes = [(name, str(weight.dtype), list(weight.shape)) for name, weight in weights]
        text = f"{self.program.code}\n{sorted(shapes)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def __call__(
        self, dense: Sequence[torch.Tensor], embeddings: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Scores a batch of trusted inputs, as fp32 `[B]` or `[B, K]` per output; thread-safe.

        Args:
            dense: all inputs but the last (`TowerInputs`): fp32 `[B, width]` each, in `load`'s
                order; then those of each sequence.
            embeddings: fp32 `[B, embedding_width]`.
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
    sequences: Mapping[str, SequenceInput] = _NO_SEQUENCES,
    calibration: Sequence[torch.Tensor] | None = None,
    embedding_text: str = "",
) -> torch.export.ExportedProgram:
    """Exports a trained module as the program that an artifact stores.

    Args:
        module: its `forward` takes the inputs of `TowerInputs` by name: fp32 `[B, width]` for
            each dense input, `[B, L, width]` and int64 lengths `[B]` for each sequence, int64 ids
            `[B, L]` for each feature that has them, and fp32 `[B, embedding_width]` as
            `embeddings`, which it may leave out if that is 0. It returns an fp32 tensor `[B]` or
            `[B, K]`, or a dict of them by output name. It is not changed: a copy is exported, on
            the CPU and in eval mode.
        dense: name and width of each dense input.
        outputs: the names of the outputs, in the order in which the program returns them.
        precision: of the inner matrix products.
        sequences: by name, in the program's order.
        calibration: samples of the inputs, `[S, ...]` each, in the program's order; int8 needs
            them.
        embedding_text: the embeddings' features and tables, for errors.

    Returns:
        A program for any batch of at least one sample, and any length of sequences that are not
        fixed. It takes the inputs by position, and returns a tuple of fp32 tensors. It has been
        run against the module, and holds only operators that a tower may call.

    Raises:
        TowerError: the module does not fit this description, cannot be exported for every batch
            size and length, calls an operator that is not allowed, or differs from its program.
    """
    inputs = TowerInputs(dense, embedding_width, sequences)
    inputs.check()
    check_names(module, inputs, outputs)
    named = NamedTower(copy_for_export(module), inputs, outputs)
    samples = module_samples(inputs)
    where = f"the module ({_described(inputs, embedding_text)})"
    expected = _scores_of(named, inputs, outputs, where)
    program = _export(named, inputs, outputs)
    stored = read_packed(io.BytesIO(pack_program(program)), "the exported tower")
    for sample, wanted in zip(samples, expected, strict=True):
        found = run_program(stored, sample, outputs, "the program")[0]
        check_close(found, wanted, outputs, empty=inputs.empty(sample))
    if precision in (Precision.FP32, Precision.TF32):
        return program
    plain = program.module()
    if sequences:
        fold_weights(plain)
    if precision is not Precision.INT8:
        program = _export(lower_precision(plain, _LOW_DTYPES[precision]), inputs, outputs)
    elif calibration is not None:
        program = _export(lower_to_int8(plain, calibration), inputs, outputs)
    else:
        raise TowerError("an int8 tower: expected samples to choose its integers from, got none")
    stored = read_packed(io.BytesIO(pack_program(program)), f"the {precision} tower")
    for sample in samples:
        run_program(stored, sample, outputs, f"the {precision} program")
    return program


def _scores_of(
    named: NamedTower, inputs: TowerInputs, outputs: Sequence[str], where: str
) -> list[tuple[torch.Tensor, ...]]:
    """The module's scores of `module_samples`; an error says at which lengths it fails."""
    try:
        return [run_program(named, one, outputs, where)[0] for one in module_samples(inputs)]
    except TowerError as error:
        # Without a cause its outputs are not the declared ones, whatever the lengths.
        if not inputs.sequences or error.__cause__ is None:
            raise
        raise TowerError(f"{error}{_failing_lengths(named, inputs, outputs)}") from error


class _FromTheStart(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses computed indices below 0, which torch counts from the end: of the padding."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs an operator; raises IndexError."""
        if func is torch.ops.aten.index.Tensor:
            places = [index for index in args[1] if index is not None]
            if any(index.dtype is not torch.bool and bool((index < 0).any()) for index in places):
                raise IndexError("an index below 0")
        return func(*args, **(kwargs or {}))


def _failing_lengths(
    named: NamedTower,
    inputs: TowerInputs,
    outputs: Sequence[str],
    checked: Callable[[], AbstractContextManager[Any]] = _FromTheStart,
) -> str:
    """Words on the lengths at which a module fails, and on the spec that leaves them out."""

    def fails(lengths: Mapping[str, int]) -> bool:
        used = {
            name: replace(s, min_length=min(max(lengths[name], s.min_length), s.max_length))
            for name, s in inputs.sequences.items()
        }
        longer = replace(inputs, sequences=used)
        try:
            with checked():
                run_program(named, longer.samples(2, longer.lengths(1)), outputs, "the module")
        except TowerError:
            return True
        return False

    def alike(length: int) -> dict[str, int]:
        return dict.fromkeys(inputs.sequences, length)

    least, most = min(inputs.shortest), max(inputs.longest)
    tried = (*range(least, min(most, _MOST_TRIED + 1)), most)
    works = [length for length in tried if not fails(alike(length))]
    if not works and checked is _FromTheStart:
        return _failing_lengths(named, inputs, outputs, nullcontext)
    if not works:
        return f"; it fails at every length tried, from {least} to {most}"
    shorter, longer = range(least, works[0]), range(works[-1] + 1, most + 1)
    shortest = least + bisect_left(shorter, True, key=lambda length: not fails(alike(length)))
    longest = works[-1] + bisect_left(longer, True, key=lambda length: fails(alike(length)))
    words = ""
    for bad, good, limit in (
        (shortest - 1, shortest, "min_length"),
        (most, longest, "max_length"),
    ):
        if not least <= bad != good:
            continue
        names = [name for name in inputs.sequences if fails({**alike(good), name: bad})]
        names = names or list(inputs.sequences)
        at = [
            f"{name!r} has length {min(bad, inputs.sequences[name].max_length)}" for name in names
        ]
        words += (
            f", where {' and '.join(at)}, and not at length {good}: set "
            f"{' and '.join(f'sequences.{name}.{limit}' for name in names)} = {good}"
        )
    return words


def _described(inputs: TowerInputs, embedding_text: str) -> str:
    dense = ", ".join(f"{name} {width}" for name, width in inputs.dense.items()) or "none"
    made_of = f": {embedding_text}" if embedding_text else ""
    of = ", ".join(f"{name} {one.width}" for name, one in inputs.sequences.items())
    sequences = f"sequences: {of}; " if of else ""
    return f"dense.inputs: {dense}; {sequences}embeddings {inputs.embedding_width}{made_of}"


def _export(
    module: torch.nn.Module, inputs: TowerInputs, outputs: Sequence[str]
) -> torch.export.ExportedProgram:
    """Exports `module` for every batch size; raises TowerError, chained, when torch cannot.

    `module` takes its inputs by position.
    """
    lengths = inputs.lengths(_TRACED_LENGTH)
    sample, shapes = tuple(inputs.samples(_TRACED_BATCH, lengths)), (inputs.dynamic_shapes(),)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Recurrent layers keep a list of their weights, which torch's tracing fills anew.
            warnings.filterwarnings("ignore", ".*_flat_weights", UserWarning)
            traced = _traced(module, sample, shapes, has_lengths=bool(inputs.sequences))
            check_assumptions(traced, inputs)
            program = decompose(traced)
            _refuse_changes(program, inputs)
            return record_names(program, inputs, outputs)
    except TowerError:
        raise
    except Exception as error:
        reason = torch_message(error)
        if "data-dependent" in reason:
            reason += " (a tower cannot branch on values: use torch.where and a mask)"
        message = (
            f"torch cannot export the tower for every {_specialised(reason, inputs)}"
            f"{in_submodule(getattr(module, 'tower', module), error)}: {reason}"
        )
        raise TowerError(message) from error


def _traced(
    module: torch.nn.Module, sample: Any, shapes: Any, *, has_lengths: bool
) -> torch.export.ExportedProgram:
    # torch cannot prove some facts about lengths and batches, such as min(L + 1, 2 L + 2) = L + 1:
    # they become assertions, which `check_assumptions` checks.
    for deferred in (True,) if has_lengths else (False, True):
        try:
            return torch.export.export(
                module,
                sample,
                dynamic_shapes=shapes,
                prefer_deferred_runtime_asserts_over_guards=deferred,
            )
        # torch's own class of it would bring its compiler into servers.
        except Exception as error:
            if deferred or "Not all values of" not in str(error):
                raise
    raise InternalError("a tower was neither exported nor refused")


def _refuse_changes(program: torch.export.ExportedProgram, inputs: TowerInputs) -> None:
    signature = program.graph_signature
    for name in signature.user_inputs_to_mutate.values():
        changed = inputs.names[signature.user_inputs.index(name)]
        raise TowerError(
            f"the module changes its input {changed!r} in place: compute a new tensor instead"
        )
    for kind, names in (
        ("buffer", signature.buffers_to_mutate),
        ("parameter", signature.parameters_to_mutate),
    ):
        for name in names.values():
            raise TowerError(
                f"the module changes its {kind} {name.removeprefix('tower.')!r} when it is called: "
                "its scores would depend on earlier requests"
            )


def _specialised(reason: str, inputs: TowerInputs) -> str:
    for number, (name, one) in enumerate(inputs.sequences.items()):
        if length_symbol(number) in reason:
            return f"length of {name!r} up to {one.max_length} ({fixed_instead(name)})"
    return "batch size and length" if inputs.sequences else "batch size"
