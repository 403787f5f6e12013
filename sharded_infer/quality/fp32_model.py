"""The fp32 model: scores of trained weights and tower, with rows optionally rounded to formats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.bags import Bags
from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from kernels.wording import counted
from quant.encoder import UnrepresentableRowError, encode_zeroing
from quant.sources.table_weight import TableWeight
from sharded_infer.errors import InputError
from sharded_infer.inputs.id_policy import IdPolicy
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.sequences.layout import SequenceLayout
from sharded_infer.inputs.sequences.tower_rows import SequenceRows, taken_apart
from sharded_infer.specs.model_spec import FeatureSpec, ModelSpec
from sharded_infer.tensors import tensor_of
from sharded_infer.towers.named_tower import NamedTower
from sharded_infer.towers.program.tower_inputs import TowerInputs


@dataclass(frozen=True, slots=True)
class Mix:
    """A format for each table by name, else trained values; `clip` searches int4/int2 ranges."""

    formats: Mapping[str, RowFormat] = field(default_factory=dict)
    clip: bool = True


TRAINED = Mix()


class Fp32Model:
    """A trained model that reads rows on demand, and computes in fp32."""

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, TableWeight], tower: nn.Module
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.tower = tower
        self._layout = SequenceLayout(spec)

    def changed(
        self, *, spec: ModelSpec | None = None, weights: Mapping[str, TableWeight] | None = None
    ) -> "Fp32Model":
        """The model with another spec, or other weights."""
        chosen = self.weights if weights is None else weights
        return Fp32Model(spec or self.spec, chosen, self.tower)

    def pooled(self, model_input: ModelInput, mixes: Sequence[Mix]) -> list[Tensor]:
        """Embeddings, with each table's rows rounded to a format.

        Args:
            model_input: one jagged batch of all features; of tables with id maps, rows.
            mixes: formats of the tables; rows are read once for all of them.

        Returns:
            fp32 `[B, width]` of each mix: pooled features, then the padded rows of sequences. NaN
                where a format cannot hold one of the rows.

        Raises:
            InputError: the samples are not one batch of all features, share a dense input, or have
                raw ids.
            RequestError: an id is out of range for a table with policy `error`.
        """
        bags = checked_bags(IdPolicy(self.spec.input_features), model_input)
        features = self.spec.features
        pooled = self._looked_up(features, _first(bags, len(features)), mixes)
        if not self.spec.sequences:
            return pooled
        parts = [[one] for one in pooled]
        of_sequences = self._layout.lay_out(with_bags(model_input, bags))
        for sequence in of_sequences:
            chosen = [self.spec.table_features[at] for at in sequence.bags.features]
            places = Bags(tensor_of(sequence.bags.values), tensor_of(sequence.bags.lengths))
            rows = self._looked_up(chosen, places, mixes)
            for part, of_mix in zip(parts, rows, strict=True):
                part.append(of_mix.reshape(len(sequence.lengths), -1))
        return [torch.cat(part, dim=1) for part in parts]

    def _looked_up(
        self, features: Sequence[FeatureSpec], bags: Bags, mixes: Sequence[Mix]
    ) -> list[Tensor]:
        pooled: list[list[Tensor]] = [[torch.empty(bags.lengths.shape[1], 0)] for _ in mixes]
        start = 0
        for feature, lengths in zip(features, bags.lengths, strict=True):
            stop = start + int(lengths.sum())
            scales = None if bags.weights is None else bags.weights[start:stop]
            unique, inverse = torch.unique(bags.values[start:stop], return_inverse=True)
            rows = self._rows(feature, unique)
            done: dict[tuple[RowFormat | None, bool], Tensor] = {}
            for mix, parts in zip(mixes, pooled, strict=True):
                kind = (mix.formats.get(feature.table.name), mix.clip)
                if kind not in done:
                    read_back = self._rounded(feature, rows, *kind)[inverse]
                    done[kind] = _pool(feature, read_back, lengths, scales)
                parts.append(done[kind])
            start = stop
        return [torch.cat(parts, dim=1) for parts in pooled]

    def columns(self, model_input: ModelInput) -> list[tuple[FeatureSpec, int]]:
        """The feature of each run of columns that `pooled` returns, and their number."""
        found = [(feature, feature.table.dim) for feature in self.spec.features]
        for sequence in self._layout.lay_out(model_input) if self.spec.sequences else ():
            chosen = [self.spec.table_features[at] for at in sequence.bags.features]
            found += [(one, one.table.dim) for one in chosen] * sequence.padded_length
        return found

    def tower_inputs(self, model_input: ModelInput, embeddings: Tensor) -> list[Tensor]:
        """The tower's inputs in order: dense, sequences, embeddings from `pooled`."""
        inputs = [tensor_of(array) for array in model_input.dense]
        if not self.spec.sequences:
            return [*inputs, embeddings]
        shapes = list(map(SequenceRows.empty, self._layout.lay_out(model_input)))
        pooled, sequences = taken_apart(embeddings, self.spec.embedding_width, shapes)
        return [*inputs, *(array for one in sequences for array in one.inputs), pooled]

    def scores(self, model_input: ModelInput) -> dict[str, NDArray[np.float32]]:
        """Score samples, reading only used rows; errors as `pooled` and `score`."""
        (embeddings,) = self.pooled(model_input, [TRAINED])
        return self.score(model_input, embeddings)

    def score(self, model_input: ModelInput, embeddings: Tensor) -> dict[str, NDArray[np.float32]]:
        """Run the tower on the batch's dense inputs and embeddings from `pooled`.

        Returns fp32 `[B]` or `[B, K]` by output name. Raises TowerError if outputs differ from the
        spec's.
        """
        spec = self.spec
        taken = TowerInputs(spec.dense.inputs, spec.embedding_width, spec.tower_sequences)
        named = NamedTower(self.tower, taken, spec.tower.outputs)
        was_training = self.tower.training
        self.tower.eval()
        try:
            with torch.inference_mode():
                scores = named(*self.tower_inputs(model_input, embeddings))
        finally:
            self.tower.train(was_training)
        found = zip(spec.tower.outputs, scores, strict=True)
        return {name: tensor.float().numpy() for name, tensor in found}

    def _rows(self, feature: FeatureSpec, numbers: Tensor) -> Tensor:
        weight = self.weights[feature.table.name]
        if not len(numbers):
            return torch.empty(0, weight.dim)
        rows = torch.cat([weight.read(row, row + 1) for row in numbers.tolist()])
        if self.spec.quantization.nonfinite == "zero":
            return torch.where(torch.isfinite(rows), rows, 0.0)
        return rows

    def _rounded(
        self, feature: FeatureSpec, rows: Tensor, row_format: RowFormat | None, clip: bool
    ) -> Tensor:
        stored = self.weights[feature.table.name].stored
        # Quantized rows are read unchanged.
        if row_format is None or stored is not None or not len(rows):
            return rows
        try:
            encoded, _ = encode_zeroing(row_format, rows, clip=clip)
        except UnrepresentableRowError:
            return torch.full_like(rows, torch.nan)
        return decode(row_format, encoded.stored, feature.table.dim)


def _first(bags: Bags, features: int) -> Bags:
    lengths = bags.lengths[:features].contiguous()
    end = int(lengths.sum())
    weights = None if bags.weights is None else bags.weights[:end]
    return Bags(bags.values[:end], lengths, weights)


def with_bags(model_input: ModelInput, bags: Bags) -> ModelInput:
    """The input with the ids of `checked_bags`, and without weights."""
    group = model_input.groups[0]
    changed = JaggedBatch(group.features, bags.values.numpy(), bags.lengths.numpy())
    return replace(model_input, groups=(changed,))


def input_bags(model_input: ModelInput) -> Bags:
    """The received ids; InputError unless one batch of all features without shared dense input."""
    group, samples = model_input.groups[0], model_input.batch_size
    if len(model_input.groups) != 1 or group.batch_size != samples:
        raise InputError("samples: expected one jagged batch of all features")
    if any(len(array) != samples for array in model_input.dense):
        raise InputError(f"samples: expected {counted(samples, 'row')} of every dense input")
    weights = None if group.weights is None else tensor_of(group.weights)
    return Bags(tensor_of(group.values), tensor_of(group.lengths), weights)


def checked_bags(policy: IdPolicy, model_input: ModelInput) -> Bags:
    """The ids in range; InputError as `input_bags` or for raw ids, RequestError by policy."""
    bags = input_bags(model_input)
    if model_input.ids_checked:
        return bags
    for feature in policy.features:
        if feature.table.id_map is not None:
            raise InputError(
                f"samples: feature {feature.name!r} has raw ids, and the id map of table "
                f"{feature.table.name!r} is not known here"
            )
        if feature.table.ordered:
            raise InputError(
                f"samples: feature {feature.name!r} has ids, and where the rows of table "
                f"{feature.table.name!r} lie is not known here"
            )
    return policy.apply(bags)[0]


def _pool(feature: FeatureSpec, rows: Tensor, lengths: Tensor, scales: Tensor | None) -> Tensor:
    if scales is not None:
        rows = rows * scales[:, None]
    owners = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    sums = torch.zeros(len(lengths), feature.table.dim).index_add_(0, owners, rows)
    if feature.table.pooling == "mean":
        sums = sums / lengths.clamp(min=1)[:, None]
    return sums
