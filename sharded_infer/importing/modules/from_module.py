"""Import of a trained `nn.Module` with embeddings inside: spec, weights and tower."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.wording import did_you_mean, listed
from quant.sources.checkpoint import LiveSource
from sharded_infer.errors import InputError, SpecError, TowerError
from sharded_infer.importing.modules.cut_tower import build_tower, cut_lookups
from sharded_infer.importing.modules.example import Example
from sharded_infer.importing.modules.exported import Called, called, exported, scores_of
from sharded_infer.importing.modules.id_tags import IdTags
from sharded_infer.importing.modules.keyed_bags import NO_ID
from sharded_infer.importing.modules.lookups import (
    COMPUTED,
    ModuleLookup,
    find_lookups,
    table_path,
)
from sharded_infer.importing.modules.placement import Placement, place
from sharded_infer.importing.modules.report import ImportReport, report_of
from sharded_infer.importing.modules.trained_call import TrainedCall
from sharded_infer.specs.model_spec import GateSpec, ModelSpec, OutputGate, TowerSpec

# Attributes with the trained module, of classes of torch that only wrap it.
_WRAPPED = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
_DRAWN = 17  # samples
_IMPORT_BOUND = 1e-5
_RELATIVE_BOUND = 0.1


@dataclass(frozen=True, slots=True)
class ImportedModule:
    """A trained module as `publish` takes it.

    Attributes:
        spec: tables are named by their paths in the module, features by its inputs.
        weights: by table, in the module's memory; with the module, whose scores the import check
            compares.
        samples: the example as clients send it, and samples drawn from it.
        report: the tables that were found, what stays in the tower, and what is doubtful.
    """

    spec: ModelSpec
    weights: LiveSource
    tower: nn.Module
    samples: Mapping[str, NDArray[Any]]
    report: ImportReport


def from_module(
    module: nn.Module,
    example_inputs: Any,
    *,
    name: str = "model",
    method: str = "forward",
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    user: Sequence[str] = (),
) -> ImportedModule:
    """Cut a trained module at its embeddings.

    Args:
        module: called as in inference. It is not changed.
        example_inputs: arguments of a call of real samples: a tensor `[B, ...]`, a tuple, or a dict
            by argument's name. A `KeyedJaggedTensor` among them has bags of any number of ids.
        name: of the model in repositories and on the wire.
        method: the module's method that scores.
        columns: names of the columns of the one `[B, F]` input, or by input; neighbours of one name
            are one feature.
        user: inputs that a request sends once for all its samples.

    Raises:
        InputError: the module does not take the example.
        TowerError: the module cannot be exported, or computes ids by more than constants; names the
            line.
        SpecError: no embedding is looked up, or two inputs have one name.
    """
    while isinstance(
        wrapped := getattr(module, _WRAPPED.get(type(module).__name__, ""), None), nn.Module
    ):
        module = wrapped
    example = Example.of(module, example_inputs, method=method, columns=columns)
    trained = called(module, example, method)
    scores = scores_of(trained, example.tensors)
    graph_module = exported(trained)
    tags = IdTags(graph_module, example.full)
    lookups, left = find_lookups(graph_module, tags)
    if not lookups:
        computed = [found for found in left if found.reason == COMPUTED]
        raise SpecError(
            f"{type(module).__name__} looks up no embeddings by ids of its inputs"
            + "".join(f"; {found.weight!r}: {found.reason}{found.line}" for found in computed[:1])
        )
    parameters = {lookup.weight: lookup.parameter for lookup in lookups}
    needed = cut_lookups(graph_module, lookups, tags)
    placement = place(example, lookups, parameters, needed)
    bound = max([_IMPORT_BOUND, *(_rounding(lookup) for lookup in lookups)])
    spec = _spec(name, placement, scores, user, bound)
    tower = build_tower(graph_module, example, lookups, placement, spec)
    tensors = {
        table: parameters[path].reshape(len(parameters[path]), -1)
        for table, path in placement.weights.items()
    }
    samples = _sent(_with_drawn(trained, example, placement), example, placement)
    weights = LiveSource(
        tensors,
        {},
        type(module).__name__,
        scores=TrainedCall(trained, example, placement, spec),
        samples=samples,
    )
    kept = {weight.data_ptr() for weight in tower.parameters()}
    whole_tables = [
        table_path(path) for path, weight in parameters.items() if weight.data_ptr() in kept
    ]
    left_out = example.samples + _DRAWN - len(next(iter(samples.values())))
    report = report_of(
        example, lookups, left, placement, trained, user=user, whole=whole_tables, left_out=left_out
    )
    return ImportedModule(spec, weights, tower, samples, report)


def _rounding(lookup: ModuleLookup) -> float:
    """How far a module's sums of half-precision rows are from sums in fp32, as a share."""
    dtype = lookup.parameter.dtype
    is_half = lookup.pooling is not None and dtype.itemsize < torch.float32.itemsize
    return torch.finfo(dtype).eps if is_half else 0.0


def _spec(
    name: str,
    placement: Placement,
    scores: Mapping[str, Tensor],
    user: Sequence[str],
    bound: float,
) -> ModelSpec:
    inputs = {block.name: block.sequence or block.name for block in placement.blocks}
    if unknown := [chosen for chosen in user if chosen not in inputs]:
        raise InputError(
            f"user: {unknown[0]!r} is not one of the inputs {listed(list(inputs))}"
            f"{did_you_mean(unknown[0], inputs)}"
        )
    of_user = tuple(inputs[chosen] for chosen in user)
    return ModelSpec(
        name,
        tables=placement.tables,
        dense=placement.dense,
        tower=TowerSpec(outputs=tuple(scores), user_inputs=of_user),
        sequences=dict(placement.sequences),
        gate=_gate(scores, bound),
    )


def _gate(scores: Mapping[str, Tensor], bound: float) -> GateSpec:
    """Bounds of a share for scores that are no probabilities."""
    others = [name for name, score in scores.items() if bool(((score < 0) | (score > 1)).any())]
    relative = {name: OutputGate(max_relative_diff=_RELATIVE_BOUND) for name in others}
    return GateSpec(max_import_diff=bound, outputs=relative or None)


def _with_drawn(trained: Called, example: Example, placement: Placement) -> list[Tensor]:
    """The example, samples that mix its inputs, and one with empty histories.

    Samples that the module has no finite scores of are left out.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = [
        leaf.tensor[torch.randint(0, example.samples, (_DRAWN,), generator=generator)]
        for leaf in example.leaves
    ]
    for block in placement.blocks:
        if block.is_sequence and block.width > 1:
            drawn[block.leaf].reshape(_DRAWN, -1)[-1, block.first : block.last] = 0
    for ids, leaf in zip(drawn, example.leaves, strict=True):
        if leaf.is_bag:
            ids[-1], ids[-2, 1:] = NO_ID, NO_ID
    both = [torch.cat(pair) for pair in zip(example.tensors, drawn, strict=True)]
    try:
        scores = scores_of(trained, both)
    except TowerError:
        # Inputs that do not fit each other.
        both = list(example.tensors)
        scores = scores_of(trained, both)
    is_finite = torch.stack(
        [score.reshape(len(score), -1).isfinite().all(1) for score in scores.values()]
    ).all(0)
    if not bool(is_finite.any()):
        raise TowerError("the module gives NaN or infinity for every sample of the example")
    return [tensor[is_finite] for tensor in both]


def _sent(
    leaves: Sequence[Tensor], example: Example, placement: Placement
) -> dict[str, NDArray[Any]]:
    """Inputs as clients send them."""
    sent: dict[str, NDArray[Any]] = {}
    for block in placement.blocks:
        columns = leaves[block.leaf].reshape(len(leaves[0]), -1)[:, block.first : block.last]
        if block.is_dense:
            numbers = columns.float()
            if not columns.is_floating_point() and not torch.equal(numbers.long(), columns.long()):
                raise InputError(
                    f"example input {block.name!r}: {columns.dtype} numbers that fp32 does not "
                    "hold exactly, and that look no rows up: pass smaller ones, such as differences"
                )
            sent[block.name] = (numbers if block.width > 1 else numbers[:, 0]).numpy()
        else:
            ids = columns.long().numpy()
            sent[block.name] = ids if block.width > 1 else ids[:, 0]
            if example.leaves[block.leaf].is_bag:
                bags = (bag[bag != NO_ID] for bag in ids)
                sent[block.name] = np.fromiter(bags, dtype=object, count=len(ids))
    return sent
