"""Writes a batch into pinned memory, in the layout of `input_layout`."""

import numpy as np
from numpy.typing import NDArray

from sharded_infer.abi import device_bags as abi
from sharded_infer.engines.device.input_layout import InputViews
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput

# A client decides which features a request shares; patterns are few. The limit bounds the memory
# that a hostile client can use.
_MOST_PATTERNS = 64
_Rows = tuple[NDArray[np.int64], NDArray[np.int64]]


class InputWriter:
    """Writes batches for one device."""

    def __init__(
        self,
        features: tuple[int, ...],
        *,
        columns: NDArray[np.int64],
        split_means: tuple[int, ...],
    ) -> None:
        """Creates a writer.

        Args:
            features: spec positions of the features whose ids the device needs, ascending.
            columns: int64 `[features of the spec + 1]`, first column of each feature, then the end
                of the last.
            split_means: spec positions of features whose sums the tower's device divides.
        """
        self._features = features
        self._columns = columns
        self._split_means = split_means
        self._known: dict[tuple[tuple[int, ...], ...], _Rows] = {}

    def write(
        self, batch: ModelInput, views: InputViews, bucket: int, *, weighted: bool = False
    ) -> int:
        """Writes a batch, ids already checked; returns the number of ids written.

        Args:
            views: on the host, for this bucket, with room for all ids of the batch.
            bucket: samples that the batch is padded to.
            weighted: write weights too; 1 for groups without weights.
        """
        groups = (abi.SourceGroup * len(batch.groups))()
        # Views of others' arrays are copied; copies live until the call returns.
        kept = [_contiguous(group) for group in batch.groups]
        for target, (lengths, values, weights) in zip(groups, kept, strict=True):
            target.lengths, target.values = lengths.ctypes.data, values.ctypes.data
            target.weights = None if weights is None else weights.ctypes.data
            target.features, target.bags = lengths.shape
        group_of, rows = self._rows_of(tuple(group.features for group in batch.groups))
        to = abi.DeviceBags(
            len(self._features),
            bucket,
            views.offsets.data_ptr(),
            views.values.data_ptr(),
            views.values.itemsize,
            views.weights.data_ptr() if weighted else None,
        )
        abi.write_bags(groups, len(groups), group_of.ctypes.data, rows.ctypes.data, to)
        if len(views.owners):
            self._write_tower(batch, views)
        return int(views.offsets.numpy()[-1])

    def _write_tower(self, batch: ModelInput, views: InputViews) -> None:
        size = batch.batch_size
        for view, dense in zip(views.dense, batch.dense, strict=True):
            target = view.numpy()
            target[:size] = dense
            target[size:] = 0.0
        if is_shared(batch):
            owners, shared = views.owners.numpy(), views.shared.numpy()
            owners[:] = 0
            if batch.repeats is not None:
                owners[:size] = np.repeat(np.arange(len(batch.repeats)), batch.repeats)
            shared[:] = False
            for group in batch.groups:
                if group.batch_size != size:
                    for feature in group.features:
                        begin, end = self._columns[feature : feature + 2]
                        shared[begin:end] = True
        self._write_factors(batch, views.factors.numpy())

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

    def _rows_of(self, groups: tuple[tuple[int, ...], ...]) -> _Rows:
        """Group and row in it of each of the device's features; group -1 for none."""
        known = self._known.get(groups)
        if known is None:
            group_of = np.full(len(self._features), -1, np.int64)
            rows = np.zeros(len(self._features), np.int64)
            places = {f: (g, row) for g, group in enumerate(groups) for row, f in enumerate(group)}
            for position, feature in enumerate(self._features):
                if feature in places:
                    group_of[position], rows[position] = places[feature]
            known = group_of, rows
            if len(self._known) < _MOST_PATTERNS:
                self._known[groups] = known
        return known


def _contiguous(
    group: JaggedBatch,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32] | None]:
    weights = None if group.weights is None else np.ascontiguousarray(group.weights, np.float32)
    return (
        np.ascontiguousarray(group.lengths, np.int64),
        np.ascontiguousarray(group.values, np.int64),
        weights,
    )


def is_weighted(batch: ModelInput) -> bool:
    """True if any ids of a batch have weights."""
    return any(group.weights is not None for group in batch.groups)


def is_shared(batch: ModelInput) -> bool:
    """True if samples of a batch share bags."""
    return any(group.batch_size != batch.batch_size for group in batch.groups)
