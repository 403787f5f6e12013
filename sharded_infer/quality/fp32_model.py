"""The fp32 model: scores of trained weights and tower, with rows rounded to formats or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.bags import Bags
from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from kernels.wording import counted
from quant.encoding.encoder import encode_zeroing
from quant.sources.table_weight import TableWeight
from sharded_infer.errors import InputError, TowerError
from sharded_infer.inputs.id_policy import IdPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.specs.model_spec import FeatureSpec, ModelSpec
from sharded_infer.tensors import tensor_of


@dataclass(frozen=True, slots=True)
class Mix:
    """A format for each table.

    Attributes:
        formats: by table name; a table without one keeps its trained numbers.
        clip: search the range of int4 and int2 rows.
    """

    formats: Mapping[str, RowFormat] = field(default_factory=dict)
    clip: bool = True


TRAINED = Mix()


class Fp32Model:
    """A trained model whose rows are read as they are needed, and computed with in fp32."""

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, TableWeight], tower: nn.Module
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.tower = tower

    def changed(
        self, *, spec: ModelSpec | None = None, weights: Mapping[str, TableWeight] | None = None
    ) -> "Fp32Model":
        """The model with another spec, or other weights."""
        chosen = self.weights if weights is None else weights
        return Fp32Model(spec or self.spec, chosen, self.tower)

    def pooled(self, model_input: ModelInput, mixes: Sequence[Mix]) -> list[Tensor]:
        """Pooled embeddings, with each table's rows as they are read back from a format.

        Args:
            model_input: one jagged batch of all features; of tables with id maps, rows.
            mixes: formats of the tables; rows are read once for all of them.

        Returns:
            fp32 `[B, width]` of each mix.

        Raises:
            InputError: the samples are not one batch of all features, share a dense input, or have
                raw ids.
            RequestError: a sample's id is outside a table whose policy is `error`.
        """
        bags = checked_bags(IdPolicy(self.spec.features), model_input)
        pooled: list[list[Tensor]] = [[] for _ in mixes]
        start = 0
        for feature, lengths in zip(self.spec.features, bags.lengths, strict=True):
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

    def scores(self, model_input: ModelInput) -> dict[str, NDArray[np.float32]]:
        """Scores samples with the trained weights, reading only the rows that they use.

        Raises:
            InputError, RequestError, TowerError: as `pooled` and `score`.
        """
        (embeddings,) = self.pooled(model_input, [TRAINED])
        return self.score(model_input, embeddings)

    def score(self, model_input: ModelInput, embeddings: Tensor) -> dict[str, NDArray[np.float32]]:
        """Runs the tower.

        Args:
            model_input: the batch; its dense inputs are used.
            embeddings: fp32 `[B, width]`.

        Returns:
            fp32 `[B]` or `[B, K]` by output name.

        Raises:
            TowerError: the tower returns other outputs than the spec says.
        """
        dense = {
            name: tensor_of(array)
            for name, array in zip(self.spec.dense.inputs, model_input.dense, strict=True)
        }
        was_training = self.tower.training
        self.tower.eval()
        try:
            with torch.inference_mode():
                scores = self.tower(**dense, embeddings=embeddings)
        finally:
            self.tower.train(was_training)
        names = self.spec.tower.outputs
        if isinstance(scores, Tensor):
            scores = {names[0]: scores}
        if not isinstance(scores, Mapping) or set(scores) != set(names):
            raise TowerError(f"tower: expected the outputs {list(names)}, got {scores!r:.200}")
        return {name: scores[name].float().numpy() for name in names}

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
        # Rows that are quantized already are read exactly as they are.
        if row_format is None or stored is not None or not len(rows):
            return rows
        encoded, _ = encode_zeroing(row_format, rows, clip=clip)
        return decode(row_format, encoded.stored, feature.table.dim)


def input_bags(model_input: ModelInput) -> Bags:
    """The ids of all features as they came.

    Raises:
        InputError: the samples are not one batch of all features, or share a dense input.
    """
    group, samples = model_input.groups[0], model_input.batch_size
    if len(model_input.groups) != 1 or group.batch_size != samples:
        raise InputError("samples: expected one jagged batch of all features")
    if any(len(array) != samples for array in model_input.dense):
        raise InputError(f"samples: expected {counted(samples, 'row')} of every dense input")
    weights = None if group.weights is None else tensor_of(group.weights)
    return Bags(tensor_of(group.values), tensor_of(group.lengths), weights)


def checked_bags(policy: IdPolicy, model_input: ModelInput) -> Bags:
    """The ids of all features inside their tables.

    Raises:
        InputError: as `input_bags`; or the samples have raw ids, which nobody mapped.
        RequestError: as `IdPolicy.apply`.
    """
    bags = input_bags(model_input)
    if model_input.ids_checked:
        return bags
    for feature in policy.features:
        if feature.table.id_map is not None:
            raise InputError(
                f"samples: feature {feature.name!r} has raw ids, and the id map of table "
                f"{feature.table.name!r} is not known here"
            )
    return policy.apply(bags)[0]


def fp32_scores(
    spec: ModelSpec,
    weights: Mapping[str, TableWeight],
    tower: nn.Module,
    model_input: ModelInput,
) -> dict[str, NDArray[np.float32]]:
    """Scores samples with the trained weights, reading only the rows that they use.

    Args:
        model_input: one jagged batch of all features.

    Returns:
        fp32 `[B]` or `[B, K]` by output name.

    Raises:
        InputError, RequestError, TowerError: as `Fp32Model`.
    """
    return Fp32Model(spec, weights, tower).scores(model_input)


def _pool(feature: FeatureSpec, rows: Tensor, lengths: Tensor, scales: Tensor | None) -> Tensor:
    if scales is not None:
        rows = rows * scales[:, None]
    owners = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    sums = torch.zeros(len(lengths), feature.table.dim).index_add_(0, owners, rows)
    if feature.table.pooling == "mean":
        sums = sums / lengths.clamp(min=1)[:, None]
    return sums
