"""A model's input: jagged batches of ids, and dense inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.errors import RequestError


@dataclass(frozen=True, slots=True)
class JaggedBatch:
    """Bags of ids of some features, feature-major.

    Attributes:
        features: positions of the features in the model's spec, ascending.
        values: int64 `[N]`, ids.
        lengths: int64 `[F, B]`, ids of each bag; sums to N.
        weights: fp32 `[N]`, or None.
    """

    features: tuple[int, ...]
    values: NDArray[np.int64]
    lengths: NDArray[np.int64]
    weights: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        """Raises RequestError if the arrays do not match; names the array and both values."""
        if self.lengths.ndim != 2 or self.lengths.shape[0] != len(self.features):
            raise RequestError(
                f"lengths: expected [{len(self.features)}, B], got {list(self.lengths.shape)}"
            )
        if self.lengths.size and int(self.lengths.min()) < 0:
            raise RequestError(f"lengths: expected none below 0, got {int(self.lengths.min())}")
        # A sum of huge lengths could wrap around to the right total.
        if self.lengths.size and int(self.lengths.max()) > self.values.size:
            raise RequestError(
                f"lengths: expected none above the {counted(self.values.size, 'value')}, "
                f"got {int(self.lengths.max())}"
            )
        total = int(self.lengths.sum())
        if self.values.shape != (total,):
            raise RequestError(
                f"values: the lengths sum to {total}, got shape {list(self.values.shape)}"
            )
        if self.weights is not None and self.weights.shape != self.values.shape:
            raise RequestError(
                f"weights: expected {list(self.values.shape)}, got {list(self.weights.shape)}"
            )

    @classmethod
    def trusted(
        cls,
        features: tuple[int, ...],
        values: NDArray[np.int64],
        lengths: NDArray[np.int64],
        weights: NDArray[np.float32] | None,
    ) -> "JaggedBatch":
        """A batch of arrays known to match, without checks."""
        batch = object.__new__(cls)
        put = object.__setattr__
        put(batch, "features", features)
        put(batch, "values", values)
        put(batch, "lengths", lengths)
        put(batch, "weights", weights)
        return batch

    @property
    def batch_size(self) -> int:
        """Samples in the batch."""
        return int(self.lengths.shape[1])

    def select(self, positions: Sequence[int]) -> "JaggedBatch":
        """The bags of features at ascending indices into `features`."""
        if len(positions) == len(self.features):
            return self
        ends = np.cumsum(self.lengths.sum(axis=1))
        starts = np.concatenate(([0], ends[:-1]))
        parts = [slice(starts[p], ends[p]) for p in positions]
        return JaggedBatch(
            features=tuple(self.features[p] for p in positions),
            values=np.concatenate([self.values[part] for part in parts]),
            lengths=self.lengths[list(positions)],
            weights=(
                None
                if self.weights is None
                else np.concatenate([self.weights[part] for part in parts])
            ),
        )


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One batch for a model; bags that its samples share are kept once.

    Attributes:
        groups: jagged batches that together hold every feature of the model once. A feature has
            `batch_size` bags, or fewer that samples share.
        dense: fp32 `[B, width]` or `[1, width]` of each dense input, in the spec's order.
        ids_checked: True once the features' policies were applied, so that every id is in range.
        ids_outside: ids that were out of range and ignored or wrapped, or unknown to id maps.
        ids_unknown: each table's ids unknown to its id map, dropped or read from shared rows, if
            any.
        may_have_gaps: -1 may replace dropped ids in sequences.
        are_rows: ids are rows also of tables whose raw ids shard hosts map.
        repeats: int64 `[R]`, with sum `batch_size`: a group that shares has R bags for each
            feature, and bag r is that of `repeats[r]` consecutive samples. None: one bag for all
            samples.
    """

    batch_size: int
    groups: tuple[JaggedBatch, ...]
    dense: tuple[NDArray[np.float32], ...]
    ids_checked: bool = False
    ids_outside: int = 0
    repeats: NDArray[np.int64] | None = None
    ids_unknown: tuple[tuple[str, int], ...] = ()
    are_rows: bool = False
    may_have_gaps: bool = True

    def samples(self, start: int, stop: int) -> "ModelInput":
        """The samples `[start, stop)` of an input that is one batch of all features.

        `ids_outside` and `ids_unknown` are not set. Raises RequestError for several groups, or
        shared bags.
        """
        group = self.groups[0]
        whole = (len(array) == self.batch_size for array in self.dense)
        if len(self.groups) != 1 or group.batch_size != self.batch_size or not all(whole):
            raise RequestError("samples: expected one jagged batch, and nothing shared in it")
        # First and last ids of the chosen samples in each feature.
        ends = np.cumsum(group.lengths.ravel()).reshape(group.lengths.shape)
        begins = ends - group.lengths
        kept = [
            slice(first[start], last[stop - 1]) for first, last in zip(begins, ends, strict=True)
        ]
        part = JaggedBatch(
            group.features,
            np.concatenate([group.values[k] for k in kept]),
            group.lengths[:, start:stop],
            None if group.weights is None else np.concatenate([group.weights[k] for k in kept]),
        )
        dense = tuple(array[start:stop] for array in self.dense)
        return ModelInput(stop - start, (part,), dense, self.ids_checked, are_rows=self.are_rows)
