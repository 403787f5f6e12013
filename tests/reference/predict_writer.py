"""Scores to serialized PredictResponses (protos/sharded_infer/v1/predictor.proto)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sharded_infer.v1.wire import (
    float_field,
    message_field,
    number_field,
    packed_field,
    text_field,
)


class PredictWriter:
    """Writes the responses of one version."""

    def __init__(self, name: str, version: int, outputs: Sequence[str]) -> None:
        self._head = text_field(1, name) + number_field(2, version)
        self._outputs = tuple(text_field(1, output) for output in outputs)

    def write(
        self,
        request_id: str,
        requested: Sequence[int],
        scores: Sequence[NDArray[np.float32]],
        seconds: Sequence[float],
        default_tables: Sequence[str] = (),
        unknown_ids: Sequence[tuple[str, int]] = (),
        label: str = "",
    ) -> bytes:
        """Serializes a PredictResponse; arguments as the fields of `Scored`."""
        parts = [self._head, text_field(3, request_id)]
        for position, array in zip(requested, scores, strict=True):
            output = self._outputs[position] + packed_field(2, array, "<f4")
            if array.ndim == 2:
                output += number_field(3, array.shape[1])
            parts.append(message_field(4, output))
        timing = b"".join(float_field(field, value) for field, value in enumerate(seconds, 1))
        parts.append(message_field(5, timing))
        parts += [text_field(6, table) for table in default_tables]
        parts += [
            message_field(7, text_field(1, table) + number_field(2, count))
            for table, count in unknown_ids
        ]
        parts.append(text_field(8, label))
        return b"".join(parts)
