"""Reading of a request, inputs by name, as one model input.

The forms of an input over any transport:

    f                [B] or [B, L]   one id or L ids for each sample
    f, f.lengths     [N], [B]        a jagged bag for each sample
    f, f.lengths     [B, L], [B]     as many of L ids for each sample; the others are padding
    f.weights        as f            one weight for each id
    s.lengths        [B]             the lengths of all inputs of a sequence s
    numbers          [B, L] or [N]   of a sequence, like its ids; [B, L, K] or [N, K] if K of each
    sparse.values, sparse.lengths, sparse.weights   [N], [S, B], [N]   all features at once
    dense input      [B, width]; of width 1 also [B]

A leading dimension of 1 is shared by all B samples. A missing feature is an empty bag, unless the
model requires it. A feature of several tables comes once: S features are sent, and their ids are
copied for each table.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted, did_you_mean, listed
from sharded_infer.errors import RequestError, RequestTooLargeError
from sharded_infer.inputs.feature_bags import (
    FLOATS_SAID,
    FP32,
    INTEGERS,
    INTEGERS_SAID,
    LENGTHS_SAID,
    Array,
    FeatureBags,
    checked,
    read_feature,
    read_lengths,
    read_weights,
    whole_lengths,
)
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.sequences.members import SequenceMembers
from sharded_infer.inputs.sparse_inputs import SparseInputs
from sharded_infer.specs.model_spec import ModelSpec

VALUES, LENGTHS, WEIGHTS = "sparse.values", "sparse.lengths", "sparse.weights"
_COMPANIONS = ("lengths", "weights")  # of a feature: `<feature>.lengths`
_IDS_SAID = "INT64, INT32 or BYTES"


class RequestReader:
    """Reads the requests of one model.

    `strings` are inputs whose ids may be strings, to be hashed before, with function and seed; the
    joint sparse input is included if all features take such strings.
    """

    def __init__(
        self, spec: ModelSpec, *, max_batch: int | None = None, max_ids: int | None = None
    ) -> None:
        """Prepare the reader; limits of samples and ids (over all tables), None: no limit."""
        self._sparse = SparseInputs(spec)
        self._names = frozenset(spec.sparse_inputs)
        self._sequences = SequenceMembers(spec)
        required = spec.required_inputs
        self._unweighted = spec.unweighted_inputs
        self._required = tuple(name for name in self._sparse.names if name in required)
        self._owners = tuple(feature.name for feature in spec.input_features)
        self._dense = dict(spec.dense.inputs)
        self.strings = spec.string_inputs
        hashes = {self.strings.get(name) for name in self._sparse.names}
        if len(hashes) == 1 and (hashed := hashes.pop()) is not None:
            self.strings = {**self.strings, VALUES: hashed}
        self._max_batch = max_batch
        self._max_ids = max_ids

    def datatypes(self, name: str) -> str:
        """The datatypes of an input, for messages; RequestError if it is unknown."""
        owner, _, kind = name.rpartition(".")
        if name in self._dense or name == WEIGHTS or (kind == "weights" and owner in self._names):
            return FLOATS_SAID
        if name in self._sequences.numbers:
            return FLOATS_SAID
        if name in self.strings:
            return _IDS_SAID
        if name in self._names or name == VALUES:
            return INTEGERS_SAID
        if name == LENGTHS or (kind == "lengths" and owner in self._sparse.names):
            return LENGTHS_SAID
        if name in self._sequences.lengths_inputs:
            return LENGTHS_SAID
        raise self._unknown_input(name)

    def read(self, inputs: Mapping[str, Array]) -> ModelInput:
        """Read arrays by input name: ids and lengths int64 or int32, weights and dense fp32.

        Inputs shared by all samples are kept once.

        Raises:
            RequestError: an input is missing, unknown, or of the wrong dtype or shape.
            RequestTooLargeError: more samples or ids than allowed.
        """
        if not inputs:
            raise RequestError("the request has no inputs")
        dense = {name: self._read_dense(name, inputs) for name in self._dense}
        if VALUES in inputs or LENGTHS in inputs or WEIGHTS in inputs:
            groups = self._read_all_at_once(inputs)
            sizes = {LENGTHS: groups[0].batch_size}
        else:
            bags = self._read_features(inputs)
            sizes = {name: len(bag.lengths) for name, bag in bags.items()}
        sizes |= {name: len(array) for name, array in dense.items()}
        batch = self._batch_size(sizes)
        if VALUES not in inputs:
            groups = self._group(bags, batch)
        return ModelInput(batch, groups, tuple(dense.values()))

    def _read_dense(self, name: str, inputs: Mapping[str, Array]) -> NDArray[np.float32]:
        width = self._dense[name]
        if name not in inputs:
            raise RequestError(f"input {name!r} is missing: expected FP32 [B, {width}]")
        array = checked(name, inputs[name], FP32, FLOATS_SAID)
        if width == 1 and array.ndim == 1:
            array = array[:, None]
        if array.ndim != 2 or array.shape[1] != width:
            raise RequestError(
                f"input {name!r}: expected FP32 [B, {width}], got {list(array.shape)}"
            )
        return array.astype(np.float32, copy=False)

    def _read_features(self, inputs: Mapping[str, Array]) -> dict[str, FeatureBags]:
        bags = {}
        for name, array in inputs.items():
            if name in self._names:
                # [B, 0] takes no bytes on the wire, but its lengths would take memory here.
                if np.ndim(array) == 2:
                    self._check_limit(len(array))
                bags[name] = self._read_feature(name, array, inputs)
            elif name in self._sequences.numbers:
                # As [B, 0] of ids.
                if np.size(array) == 0:
                    self._check_limit(len(array))
                bags[name] = self._read_numbers(name, array, inputs)
            elif name not in self._dense:
                self._check_companion(name, inputs)
        self._sequences.check({name: bag.lengths for name, bag in bags.items()})
        for name in self._required:
            if name not in bags:
                raise RequestError(
                    f"input {name!r} is missing: the model requires it; expected {INTEGERS_SAID} "
                    "ids, or empty bags"
                )
        self._check_ids({name: len(bag.values) for name, bag in bags.items()})
        return bags

    def _read_feature(self, name: str, array: Array, inputs: Mapping[str, Array]) -> FeatureBags:
        lengths = self._sequences.lengths_input(name, inputs)
        bags = read_feature(name, array, inputs, lengths)
        if bags.weights is not None:
            self._check_weights(name, bags.weights)
        return bags

    def _check_weights(self, name: str, weights: NDArray[np.float32]) -> None:
        why = self._unweighted.get(name)
        if why is not None and (other := weights[weights != 1]).size:
            raise RequestError(
                f"weights of {name!r}: {why}, expected none or 1 for each id, got {other[0]}"
            )

    def _read_numbers(self, name: str, array: Array, inputs: Mapping[str, Array]) -> FeatureBags:
        numbers = checked(name, array, FP32, FLOATS_SAID).astype(np.float32, copy=False)
        companion = self._sequences.lengths_input(name, inputs)
        lengths = None if companion is None else read_lengths(companion, inputs)
        return FeatureBags(*self._sequences.read_numbers(name, numbers, lengths), None)

    def _check_companion(self, name: str, inputs: Mapping[str, Array]) -> None:
        owner, _, kind = name.rpartition(".")
        if name in self._sequences.lengths_inputs:
            return
        weighted = kind == "weights" and owner in self._sequences.unweighted
        if kind not in _COMPANIONS or owner not in self._sparse.names or weighted:
            raise self._unknown_input(name)
        if owner not in inputs:
            raise RequestError(f"input {name!r} came without {owner!r}")

    def _unknown_input(self, name: str) -> RequestError:
        own = [*self._dense, *self._sparse.names]
        known = [*own, VALUES, LENGTHS, WEIGHTS]
        known += [f"{feature}.{part}" for feature in self._sparse.names for part in _COMPANIONS]
        known += self._sequences.lengths_inputs
        return RequestError(
            f"input {name!r} is not one of the model's: {listed(own)}{did_you_mean(name, known)}"
        )

    def _read_all_at_once(self, inputs: Mapping[str, Array]) -> tuple[JaggedBatch, ...]:
        for name in (VALUES, LENGTHS):
            if name not in inputs:
                raise RequestError(f"input {name!r} is missing: {VALUES} and {LENGTHS} go together")
        allowed = {VALUES, LENGTHS, WEIGHTS, *self._dense}
        if strange := [name for name in inputs if name not in allowed]:
            raise RequestError(f"input {strange[0]!r} cannot stand beside {VALUES!r}")
        if numbers := list(self._sequences.numbers):
            raise RequestError(
                f"input {VALUES!r}: the model's {numbers[0]!r} has no ids; send each input by name"
            )
        count = len(self._names)
        lengths = checked(LENGTHS, inputs[LENGTHS], INTEGERS, LENGTHS_SAID)
        values = checked(VALUES, inputs[VALUES], INTEGERS, INTEGERS_SAID)
        if lengths.ndim != 2 or lengths.shape[0] != count:
            raise RequestError(
                f"input {LENGTHS!r}: expected {LENGTHS_SAID} [{count}, B], "
                f"got {list(lengths.shape)}"
            )
        if values.ndim != 1:
            raise RequestError(
                f"input {VALUES!r}: expected {INTEGERS_SAID} [N], got {list(values.shape)}"
            )
        lengths = whole_lengths(LENGTHS, lengths, values.shape[0])
        weights = read_weights(WEIGHTS, inputs, values.shape)
        counts = lengths.sum(axis=1)
        if weights is not None:
            of_inputs = np.split(weights, np.cumsum(counts)[:-1])
            for name, own in zip(self._sparse.names, of_inputs, strict=True):
                self._check_weights(name, own)
        self._check_ids(dict(zip(self._sparse.names, counts.tolist(), strict=True)))
        self._sequences.check(dict(zip(self._sparse.names, lengths, strict=True)))
        sent = tuple(range(count))
        batch = JaggedBatch(sent, values.astype(np.int64, copy=False), lengths, weights)
        return (self._sparse.to_features(batch),)

    def _batch_size(self, sizes: Mapping[str, int]) -> int:
        batch = max(sizes.values())
        for name, size in sizes.items():
            if size not in (1, batch):
                largest = next(other for other, n in sizes.items() if n == batch)
                raise RequestError(
                    f"input {name!r}: {counted(size, 'sample')}, but {largest!r} has "
                    f"{batch}; expected "
                    f"{batch}, or 1 to share it"
                )
        if batch == 0:
            raise RequestError(f"the request is empty: input {next(iter(sizes))!r} has no samples")
        self._check_limit(batch)
        return batch

    def _check_limit(self, batch: int) -> None:
        if self._max_batch is not None and batch > self._max_batch:
            raise RequestTooLargeError(
                f"the request has {counted(batch, 'sample')}, at most {self._max_batch} are allowed"
            )

    def check_count(self, ids: int) -> None:
        """Raises RequestTooLargeError for too many ids, before they are read or copied."""
        if self._max_ids is not None and ids > self._max_ids:
            raise RequestTooLargeError(f"ids: expected at most {self._max_ids}, got {ids}")

    def _check_ids(self, sent: Mapping[str, int]) -> None:
        # A table's ids are a copy of its feature's.
        copies = zip(self._sparse.names, self._sparse.copies, strict=True)
        self.check_count(sum(count * sent.get(name, 0) for name, count in copies))

    def _group(self, bags: Mapping[str, FeatureBags], batch: int) -> tuple[JaggedBatch, ...]:
        # Bags of one sample are looked up once, and broadcast after.
        shared = {name for name, bag in bags.items() if len(bag.lengths) == 1}
        if not shared or batch == 1:
            return (self._join(bags, range(len(self._owners)), batch),)
        # Missing features join the shared ones: one empty bag serves all samples.
        is_own = [name in bags and name not in shared for name in self._owners]
        own = [feature for feature, flag in enumerate(is_own) if flag]
        others = [feature for feature, flag in enumerate(is_own) if not flag]
        groups = ((own, batch), (others, 1))
        return tuple(self._join(bags, features, size) for features, size in groups if features)

    def _join(
        self, bags: Mapping[str, FeatureBags], features: Sequence[int], batch: int
    ) -> JaggedBatch:
        nothing = FeatureBags(np.empty(0, np.int64), np.zeros(batch, np.int64), None)
        chosen = [bags.get(self._owners[feature], nothing) for feature in features]
        weights = None
        if any(bag.weights is not None for bag in chosen):
            weights = np.concatenate(
                [
                    np.ones(len(bag.values), np.float32) if bag.weights is None else bag.weights
                    for bag in chosen
                ]
            )
        return JaggedBatch(
            features=tuple(features),
            values=np.concatenate([bag.values for bag in chosen]),
            lengths=np.stack([bag.lengths for bag in chosen]),
            weights=weights,
        )


def make_input(spec: ModelSpec, inputs: Mapping[str, Array]) -> ModelInput:
    """Read one request of a model; see `RequestReader.read`."""
    return RequestReader(spec).read(inputs)
