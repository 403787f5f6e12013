"""Writes a batch into pinned memory, in the layout of `input_layout`."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sharded_infer.engines.device.input_layout import InputViews
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput

# Which features a request shares depends on the client, so few patterns occur. The limit bounds
# the memory that a hostile client can use.
_MOST_PATTERNS = 64


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Maps a group's features to a device's features."""

    group_rows: NDArray[np.int64]
    device_rows: NDArray[np.int64]
    # (first device row, first group row, rows) of each run that is contiguous in both.
    runs: tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class HostArrays:
    """`InputViews` on the host, with the arrays as NumPy views of the same memory."""

    views: InputViews
    offsets: NDArray[np.int32] = field(init=False)
    owners: NDArray[np.int32] | None = field(init=False)
    shared: NDArray[np.bool_] | None = field(init=False)
    factors: NDArray[np.float32] | None = field(init=False)
    dense: tuple[NDArray[np.float32], ...] = field(init=False)
    values: NDArray[Any] = field(init=False)
    weights: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        views = self.views
        self.offsets = views.offsets.numpy()
        self.owners = None if views.owners is None else views.owners.numpy()
        self.shared = None if views.shared is None else views.shared.numpy()
        self.factors = None if views.factors is None else views.factors.numpy()
        self.dense = tuple(one.numpy() for one in views.dense)
        self.values = views.values.numpy()
        self.weights = views.weights.numpy()


class InputWriter:
    """Writes batches for one device."""

    def __init__(
        self,
        features: tuple[int, ...],
        *,
        columns: NDArray[np.int64],
        split_means: tuple[int, ...],
    ) -> None:
        """Makes a writer.

        Args:
            features: spec positions of the features whose ids the device needs, ascending.
            columns: int64 `[features of the spec + 1]`, first column of each feature, then the
                end of the last.
            split_means: spec positions of features whose sums the tower's device divides.
        """
        self._features = features
        self._columns = columns
        self._split_means = split_means
        self._patterns: dict[tuple[int, ...], _Pattern] = {}

    def write(self, batch: ModelInput, arrays: HostArrays, bucket: int) -> int:
        """Writes a batch.

        Args:
            batch: with ids already checked.
            arrays: for this bucket, with room for all ids of the batch.
            bucket: samples that the batch is padded to.

        Returns:
            The number of ids written.
        """
        counts = np.zeros((len(self._features), bucket), np.int64)
        patterns = [self._pattern(group.features) for group in batch.groups]
        for group, pattern in zip(batch.groups, patterns, strict=True):
            counts[pattern.device_rows, : group.batch_size] = group.lengths[pattern.group_rows]
        arrays.offsets[0] = 0
        np.cumsum(counts.ravel(), out=arrays.offsets[1:])
        for group, pattern in zip(batch.groups, patterns, strict=True):
            for source, first, count in _places(group, pattern, arrays, bucket):
                arrays.values[first : first + count] = group.values[source : source + count]
        if arrays.owners is not None:
            self._write_tower(batch, arrays)
        return int(arrays.offsets[-1])

    def write_weights(self, batch: ModelInput, arrays: HostArrays, bucket: int) -> None:
        """Writes the weights of a batch after `write`; 1 for groups without weights."""
        for group in batch.groups:
            pattern = self._pattern(group.features)
            for source, first, count in _places(group, pattern, arrays, bucket):
                weights = arrays.weights[first : first + count]
                if group.weights is None:
                    weights[:] = 1.0
                else:
                    weights[:] = group.weights[source : source + count]

    def _write_tower(self, batch: ModelInput, arrays: HostArrays) -> None:
        size = batch.batch_size
        for target, dense in zip(arrays.dense, batch.dense, strict=True):
            target[:size] = dense
            target[size:] = 0.0
        if arrays.owners is not None and arrays.shared is not None and is_shared(batch):
            arrays.owners[:] = 0
            if batch.repeats is not None:
                arrays.owners[:size] = np.repeat(np.arange(len(batch.repeats)), batch.repeats)
            arrays.shared[:] = False
            for group in batch.groups:
                if group.batch_size != size:
                    for feature in group.features:
                        begin, end = self._columns[feature : feature + 2]
                        arrays.shared[begin:end] = True
        if arrays.factors is not None:
            self._write_factors(batch, arrays.factors)

    def _write_factors(self, batch: ModelInput, factors: NDArray[np.float32]) -> None:
        """Writes reciprocal bag lengths, rounded to fp32: FBGEMM's MEAN multiplies by these."""
        factors[:] = 1.0
        for number, feature in enumerate(self._split_means):
            for group in batch.groups:
                if feature in group.features:
                    lengths = group.lengths[group.features.index(feature)]
                    # Sums of a shared feature are divided before they are expanded to samples.
                    factors[number, : len(lengths)] = np.float32(1) / np.maximum(lengths, 1).astype(
                        np.float32
                    )

    def _pattern(self, features: tuple[int, ...]) -> _Pattern:
        pattern = self._patterns.get(features)
        if pattern is None:
            pattern = self._make_pattern(features)
            if len(self._patterns) < _MOST_PATTERNS:
                self._patterns[features] = pattern
        return pattern

    def _make_pattern(self, features: tuple[int, ...]) -> _Pattern:
        rows = {feature: row for row, feature in enumerate(features)}
        pairs = [(d, rows[f]) for d, f in enumerate(self._features) if f in rows]
        runs: list[tuple[int, int, int]] = []
        for device_row, group_row in pairs:
            if runs and runs[-1][0] + runs[-1][2] == device_row:
                first, source, count = runs[-1]
                if source + count == group_row:
                    runs[-1] = (first, source, count + 1)
                    continue
            runs.append((device_row, group_row, 1))
        return _Pattern(
            group_rows=np.array([row for _, row in pairs], np.int64),
            device_rows=np.array([row for row, _ in pairs], np.int64),
            runs=tuple(runs),
        )


def _places(
    group: JaggedBatch, pattern: _Pattern, arrays: HostArrays, bucket: int
) -> list[tuple[int, int, int]]:
    """Contiguous runs of ids: (start in the group, start in the device's values, ids)."""
    if len(pattern.runs) == 1 and len(pattern.group_rows) == len(group.features):
        return [(0, int(arrays.offsets[pattern.runs[0][0] * bucket]), len(group.values))]
    ends = np.cumsum(group.lengths.sum(axis=1))
    places = []
    for device_row, group_row, rows in pattern.runs:
        source = int(ends[group_row - 1]) if group_row else 0
        first = int(arrays.offsets[device_row * bucket])
        places.append((source, first, int(ends[group_row + rows - 1]) - source))
    return places


def is_weighted(batch: ModelInput) -> bool:
    """Whether any ids of a batch have weights."""
    return any(group.weights is not None for group in batch.groups)


def is_shared(batch: ModelInput) -> bool:
    """Whether samples of a batch share bags."""
    return any(group.batch_size != batch.batch_size for group in batch.groups)
