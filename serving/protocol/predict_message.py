"""PredictRequests read by protobuf, in every form and with all error messages."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from kernels.wording import counted, did_you_mean, listed
from serving.protocol.message_size import PREDICT_LIMITS, check_size
from serving.protocol.wire_numbers import numbers_of
from serving.protocol.wire_strings import hashed_parts
from sharded_infer.errors import RequestError
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.v1 import predictor_pb2

Array = NDArray[np.generic]


def parse_predict(message: bytes) -> Any:
    """Parses a PredictRequest.

    Raises:
        RequestError: the bytes are not such a message.
        RequestTooLargeError: it has too many fields or numbers.
    """
    check_size(message, PREDICT_LIMITS)
    try:
        return predictor_pb2.PredictRequest.FromString(message)
    except DecodeError as error:
        raise RequestError(f"the message is unreadable: {error}") from error


class PredictInputs:
    """Maps the inputs of a model's PredictRequests to the names of `RequestReader`."""

    def __init__(self, spec: ModelSpec) -> None:
        self._features = dict.fromkeys(spec.sparse_inputs)
        self._numbers = spec.sequence_numbers
        self._widths = {**spec.dense.inputs, **self._numbers}
        self._strings = spec.string_inputs

    def arrays(self, request: Any) -> dict[str, Array]:
        """Inputs of a request.

        Raises RequestError if one is unknown or occurs twice, or its sizes do not match.
        """
        found: dict[str, Array] = {}
        for inputs, is_user in ((request.user, True), (request.candidates, False)):
            for feature in inputs.sparse:
                ids = self._ids(feature)
                # An empty list may be ids where numbers are expected.
                width = 0 if len(ids) else self._numbers.get(feature.name, 0)
                self._check(feature.name, found, is_sparse=not width)
                _put_feature(found, feature, ids, is_user=is_user)
                if width:
                    shape = found[feature.name].shape
                    found[feature.name] = np.empty(
                        shape if width == 1 else (*shape, width), np.float32
                    )
            for dense in inputs.dense:
                self._check(dense.name, found, is_sparse=False)
                candidates = 1 if is_user else _candidates(inputs.sparse, found)
                if dense.name in self._numbers:
                    self._put_numbers(found, dense, candidates, is_user=is_user)
                else:
                    found[dense.name] = self._dense(dense, candidates, is_user=is_user)
        return found

    def _put_numbers(
        self, found: dict[str, Array], dense: Any, candidates: int, *, is_user: bool
    ) -> None:
        name, width = dense.name, self._numbers[dense.name]
        values = numbers_of(dense.values, np.float32)
        if dense.lengths and is_user:
            raise RequestError(
                f"input {name!r}: the user's numbers are of one bag; lengths are for candidates"
            )
        if len(values) % width:
            raise RequestError(
                f"input {name!r}: expected {counted(width, 'number')} for each id, got "
                f"{len(values)}"
            )
        if dense.lengths:
            found[f"{name}.lengths"] = numbers_of(dense.lengths, np.int64)
            found[name] = values.reshape(-1, width) if width > 1 else values
            return
        bags = 1 if is_user else max(candidates, 1)
        if len(values) % (bags * width):
            raise RequestError(
                f"input {name!r}: the numbers of {counted(len(values) // width, 'id')} cannot make "
                f"equal bags of {counted(bags, 'candidate')}; other bags need lengths"
            )
        found[name] = values.reshape(bags, -1, width)

    def _ids(self, feature: Any) -> NDArray[np.int64]:
        """A feature's ids, int64 `[N]`; strings are hashed."""
        name = feature.name
        came = [
            kind
            for kind, ids in (
                ("ids", feature.ids),
                ("long_ids", feature.long_ids),
                ("strings", feature.strings or feature.string_lengths),
            )
            if ids
        ]
        if len(came) > 1:
            raise RequestError(
                f"feature {name!r}: both {came[0]} and {came[1]} came; expected one of them"
            )
        if came != ["strings"]:
            return numbers_of(feature.ids or feature.long_ids, np.int64)
        hashed = self._strings.get(name)
        if hashed is None:
            raise RequestError(f"feature {name!r}: strings came; expected ids that are numbers")
        return hashed_parts(name, feature.strings, feature.string_lengths, hashed)

    def _check(self, name: str, found: dict[str, Array], *, is_sparse: bool) -> None:
        known = self._features if is_sparse else self._widths
        if name in (self._widths if is_sparse else self._features):
            if is_sparse:
                kind = "numbers of a sequence" if name in self._numbers else "a dense input"
                raise RequestError(f"{name!r} is {kind}: expected floats, got integers")
            raise RequestError(
                f"{name!r} is a feature: expected integers, got floats (what pandas makes of "
                "integers where some are missing)"
            )
        if name not in known:
            kind = "feature" if is_sparse else "dense input"
            raise RequestError(
                f"{kind} {name!r} is not one of the model's: {listed(known)}"
                f"{did_you_mean(name, known)}"
            )
        if name in found:
            raise RequestError(f"input {name!r} came twice")

    def _dense(self, dense: Any, candidates: int, *, is_user: bool) -> Array:
        width = self._widths[dense.name]
        if dense.lengths:
            raise RequestError(
                f"dense input {dense.name!r}: expected a row for each candidate, got lengths"
            )
        values = numbers_of(dense.values, np.float32)
        # Dense inputs tell the number of candidates where no feature does.
        rows = candidates if is_user or candidates > 1 else len(values) // width
        if len(values) != rows * width:
            wanted = f"{counted(width, 'value')} for each candidate"
            if is_user:
                wanted = counted(width, "value")
            elif candidates > 1:
                wanted = (
                    f"{counted(candidates, 'candidate')} x {width} = "
                    f"{counted(candidates * width, 'value')}"
                )
            raise RequestError(f"dense input {dense.name!r}: expected {wanted}, got {len(values)}")
        return values.reshape(-1, width)


def _candidates(features: Iterable[Any], found: Mapping[str, Array]) -> int:
    """Number of candidates by the features; 0 without features."""
    counts = (len(found.get(f"{one.name}.lengths", found[one.name])) for one in features)
    return max(counts, default=0)


def _put_feature(
    found: dict[str, Array], feature: Any, ids: NDArray[np.int64], *, is_user: bool
) -> None:
    name = feature.name
    ids = _user_bag(feature, ids) if is_user else _candidate_bags(feature, ids)
    found[name] = ids
    if feature.lengths:
        found[f"{name}.lengths"] = numbers_of(feature.lengths, np.int64)
    if feature.weights:
        weights = numbers_of(feature.weights, np.float32)
        if weights.size != ids.size:
            raise RequestError(
                f"feature {name!r}: expected a weight for each of {counted(ids.size, 'id')}, got "
                f"{weights.size}"
            )
        found[f"{name}.weights"] = weights.reshape(ids.shape)


def _user_bag(feature: Any, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    if feature.lengths or feature.ids_per_bag:
        raise RequestError(
            f"feature {feature.name!r}: the user's ids are one bag; lengths and ids_per_bag are "
            "for candidates"
        )
    return ids.reshape(1, -1)


def _candidate_bags(feature: Any, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    name, size = feature.name, feature.ids_per_bag
    if feature.lengths:
        if size:
            raise RequestError(f"feature {name!r}: expected lengths or ids_per_bag, got both")
        return ids
    if not len(ids):
        raise RequestError(
            f"feature {name!r}: neither ids nor lengths came: it has no candidates; where theirs "
            "are empty bags, send lengths of 0, or leave it out"
        )
    if not size:
        return ids
    if len(ids) % size:
        raise RequestError(
            f"feature {name!r}: {counted(len(ids), 'id')} cannot make bags of {size}"
        )
    return ids.reshape(-1, size)
