"""PredictRequests as bytes; the fields are those of protos/sharded_infer/v1/predictor.proto."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sharded_infer.client.bags import DenseInput, Input, SparseFeature
from sharded_infer.client.inputs import Inputs, read_inputs
from sharded_infer.errors import RequestError
from sharded_infer.v1.wire import (
    bytes_field,
    fixed64_field,
    message_field,
    number_field,
    packed_field,
    text_field,
)

_MAX_UINT32 = 2**32 - 1


def request_message(
    model: str,
    *,
    user: Inputs | Sequence[Inputs] | None = None,
    candidates: Inputs | Sequence[Inputs] | None = None,
    version: str | int = "",
    outputs: Iterable[str] = (),
    request_id: str = "",
    priority: int = 0,
    report_unknown_ids: bool = False,
    routing_key: str | int | None = None,
) -> bytes:
    """A serialized PredictRequest; arguments and RequestError as `Client.predict`."""
    return b"".join(
        (
            text_field(1, model),
            text_field(2, str(version)),
            text_field(3, request_id),
            number_field(4, priority),
            *(text_field(5, output) for output in outputs),
            bytes_field(6, _inputs(read_inputs(user, is_user=True))),
            bytes_field(7, _inputs(read_inputs(candidates, is_user=False))),
            number_field(8, int(report_unknown_ids)),
            _routing_key(routing_key),
        )
    )


def _routing_key(key: str | int | None) -> bytes:
    if key is None:
        return b""
    if isinstance(key, str):
        return text_field(9, key)
    if isinstance(key, bool) or not -(2**63) <= key < 2**63:
        raise RequestError(f"routing_key: expected a text or an int64, got {key!r}")
    return fixed64_field(10, key)


def _inputs(inputs: Iterable[Input]) -> bytes:
    return b"".join(
        message_field(2, _dense(one))
        if isinstance(one, DenseInput)
        else message_field(1, _sparse(one))
        for one in inputs
    )


def _dense(dense: DenseInput) -> bytes:
    sent = text_field(1, dense.name) + packed_field(2, dense.values, "<f4")
    return sent if dense.lengths is None else sent + packed_field(3, dense.lengths, "<u4")


def _sparse(feature: SparseFeature) -> bytes:
    parts = [text_field(1, feature.name), _ids(feature.ids)]
    if feature.lengths is not None:
        parts.append(packed_field(4, feature.lengths, "<u4"))
    if feature.weights is not None:
        parts.append(packed_field(5, feature.weights, "<f4"))
    # One id a bag is the default.
    if feature.ids_per_bag > 1:
        parts.append(number_field(6, feature.ids_per_bag))
    return b"".join(parts)


def _ids(ids: NDArray[Any]) -> bytes:
    if ids.dtype == object:
        lengths = np.fromiter(map(len, ids), np.int64, ids.size)
        return bytes_field(7, b"".join(ids)) + packed_field(8, lengths, "<u4")
    short = ids.size == 0 or (ids.min() >= 0 and ids.max() <= _MAX_UINT32)
    return packed_field(2, ids, "<u4") if short else packed_field(3, ids.astype(np.int64), "<i8")
