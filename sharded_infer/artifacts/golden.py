"""Golden requests: samples and the fp32 model's scores of them, kept with a version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save

from sharded_infer.errors import ArtifactError, InputError
from sharded_infer.files.regular_file import open_regular, read_regular
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.sequences.layout import GRAIN
from sharded_infer.inputs.sequences.members import SequenceMembers
from sharded_infer.inputs.sparse_inputs import SparseInputs
from sharded_infer.specs.id_steps import domain
from sharded_infer.specs.model_spec import ModelSpec

DEFAULT_SAMPLES = 64
MAX_GOLDEN_BYTES = 2**30
# Ids of a bag of generated samples, and of a sequence.
_MAX_IDS, _MAX_SEQUENCE = 3, 40


@dataclass(frozen=True, slots=True)
class GoldenRequests:
    """Samples with the fp32 model's scores: fp32 `[B]` or `[B, K]` of each output."""

    model_input: ModelInput
    scores: dict[str, NDArray[np.float32]]


def generate_samples(spec: ModelSpec, samples: int = DEFAULT_SAMPLES, seed: int = 0) -> ModelInput:
    """Random samples of a model: ids uniform over `id_ranges`, bags of 0 to 3, dense normal.

    For a model with raw ids, or a feature without a range, they are already rows, and marked as
    checked.
    """
    generator = np.random.default_rng(seed)
    inputs = SparseInputs(spec)
    ranges = id_ranges(spec)
    are_rows = bool(spec.raw_tables) or None in ranges.values()
    if are_rows:
        ranges = id_ranges(spec, are_rows=True)
    lengths = generator.integers(0, _MAX_IDS + 1, (len(inputs.names), samples), dtype=np.int64)
    of_input = dict(zip(inputs.names, lengths, strict=True))
    numbers = spec.sequence_numbers
    for sequence in spec.sequences.values():
        most = max(min(sequence.max_length, _MAX_SEQUENCE), sequence.shortest)
        of_sequence = generator.integers(sequence.shortest, most + 1, samples, dtype=np.int64)
        # One is run unpadded where it is alone, and padded beside a longer one.
        if (unpadded := (most - 1) // GRAIN * GRAIN) >= max(1, sequence.shortest):
            of_sequence[0] = unpadded
        for name in sequence.members:
            of_input[name][:] = of_sequence * numbers.get(name, 1)
    values = [
        _standard_numbers(generator, int(of_input[name].sum()))
        if name in numbers
        else generator.integers(*(span or (0, 0)), int(of_input[name].sum()), endpoint=True)
        for name, span in ranges.items()
    ]
    dense = [
        generator.standard_normal((samples, width), dtype=np.float32)
        for width in spec.dense.inputs.values()
    ]
    sent = JaggedBatch(tuple(range(len(inputs.names))), np.concatenate(values), lengths)
    groups = (inputs.to_features(sent),)
    return ModelInput(samples, groups, tuple(dense), ids_checked=are_rows, are_rows=are_rows)


def id_ranges(spec: ModelSpec, *, are_rows: bool = False) -> dict[str, tuple[int, int] | None]:
    """First and last id that every table of an input has a row for, by input.

    None if the `domain` of its steps finds none. With `are_rows`, steps are left out.
    """
    ranges: dict[str, tuple[int, int] | None] = dict.fromkeys(
        SparseInputs(spec).names, (-(2**63), 2**63 - 1)
    )
    for feature in spec.input_features:
        known = ranges[feature.name]
        own = domain(() if are_rows else feature.id_steps, feature.table.rows)
        if known is not None and own is not None:
            known = max(known[0], own[0]), min(known[1], own[1])
        ranges[feature.name] = known if own is not None and known and known[0] <= known[1] else None
    return ranges


def _standard_numbers(generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Normal numbers of a sequence, as jagged inputs hold them: the bits of fp32."""
    bits = generator.standard_normal(count, dtype=np.float32).view(np.uint32)
    return bits.astype(np.int64)


def save_golden(path: Path, spec: ModelSpec, golden: GoldenRequests) -> None:
    """Write golden requests as a safetensors file.

    Raises InputError unless the samples are one batch of all features, with equal ids for a
    feature's tables.
    """
    groups = golden.model_input.groups
    if len(groups) != 1 or len(groups[0].features) != len(spec.input_features):
        raise InputError("golden samples: expected one jagged batch of all features")
    sent = _as_sent(spec, groups[0])
    tensors: dict[str, NDArray[np.generic]] = {
        "sparse.values": sent.values,
        "sparse.lengths": sent.lengths,
    }
    if sent.weights is not None:
        tensors["sparse.weights"] = sent.weights
    names = spec.dense.inputs
    tensors |= {f"dense.{n}": d for n, d in zip(names, golden.model_input.dense, strict=True)}
    tensors |= {f"score.{name}": scores for name, scores in golden.scores.items()}
    # Not save_file: its files are readable by their owner only, and servers run as other users.
    path.write_bytes(save({name: np.ascontiguousarray(value) for name, value in tensors.items()}))


def _as_sent(spec: ModelSpec, batch: JaggedBatch) -> JaggedBatch:
    inputs = SparseInputs(spec)
    sent = inputs.from_features(batch)
    again = inputs.to_features(sent)
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = [
        (batch.values, again.values),
        (batch.lengths, again.lengths),
    ]
    if batch.weights is not None and again.weights is not None:
        pairs.append((batch.weights, again.weights))
    if not all(np.array_equal(one, other, equal_nan=True) for one, other in pairs):
        raise InputError("golden samples: the tables of a feature have different ids or weights")
    return sent


def load_golden(path: Path, spec: ModelSpec) -> GoldenRequests:
    """Read golden requests; ArtifactError if the file does not hold those of this model."""
    try:
        tensors = _read(path)
        model_input = _model_input(spec, tensors)
        scores = {name: tensors[f"score.{name}"] for name in spec.tower.outputs}
        _check_scores(scores, model_input.batch_size)
    except (KeyError, OSError, SafetensorError, InputError) as error:
        raise ArtifactError(f"{path}: not golden requests of {spec.name!r}: {error}") from error
    return GoldenRequests(model_input, scores)


def has_weights(path: Path) -> bool:
    """True if ids of golden requests have weights; ArtifactError for another kind of file."""
    try:
        return "sparse.weights" in _read(path)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{path}: not golden requests: {error}") from error


def load_samples(path: Path, spec: ModelSpec) -> tuple[ModelInput, dict[str, NDArray[np.generic]]]:
    """Read one batch of samples stored like golden requests, and the file's other tensors.

    `path` is a safetensors file of `sparse.values` int64, `sparse.lengths` `[S, B]`, `dense.<name>`
    fp32, and others. Raises InputError if it does not hold samples of this model.
    """
    try:
        open_regular(path, follow=True).close()
        tensors = dict(load_file(path))
        model_input = _model_input(spec, tensors)
    except (KeyError, OSError, SafetensorError, InputError) as error:
        raise InputError(f"{path}: not samples of {spec.name!r}: {error}") from error
    others = {n: t for n, t in tensors.items() if not n.startswith(("sparse.", "dense."))}
    return model_input, others


def _read(path: Path) -> dict[str, NDArray[Any]]:
    return dict(load(read_regular(path, MAX_GOLDEN_BYTES)))


def _model_input(spec: ModelSpec, tensors: Mapping[str, NDArray[Any]]) -> ModelInput:
    lengths = tensors["sparse.lengths"].astype(np.int64)
    inputs = SparseInputs(spec)
    sent = tuple(range(len(inputs.names)))
    batch = JaggedBatch(sent, tensors["sparse.values"], lengths, tensors.get("sparse.weights"))
    dense = tuple(tensors[f"dense.{name}"] for name in spec.dense.inputs)
    _check_inputs(spec, batch, dense)
    return ModelInput(batch.batch_size, (inputs.to_features(batch),), dense)


def _check_inputs(
    spec: ModelSpec, batch: JaggedBatch, dense: Sequence[NDArray[np.generic]]
) -> None:
    samples = batch.batch_size
    if batch.values.dtype != np.int64:
        raise InputError(f"sparse.values: expected int64, got {batch.values.dtype}")
    if batch.weights is not None and batch.weights.dtype != np.float32:
        raise InputError(f"sparse.weights: expected fp32, got {batch.weights.dtype}")
    names = SparseInputs(spec).names
    SequenceMembers(spec).check(dict(zip(names, batch.lengths, strict=True)))
    for (name, width), array in zip(spec.dense.inputs.items(), dense, strict=True):
        if array.dtype != np.float32 or array.shape != (samples, width):
            raise InputError(
                f"dense.{name}: expected fp32 {[samples, width]}, "
                f"got {array.dtype} {list(array.shape)}"
            )


def _check_scores(scores: Mapping[str, NDArray[np.generic]], samples: int) -> None:
    for name, array in scores.items():
        if array.dtype != np.float32 or array.ndim not in (1, 2) or len(array) != samples:
            raise InputError(
                f"score.{name}: expected fp32 [{samples}] or [{samples}, K], "
                f"got {array.dtype} {list(array.shape)}"
            )
