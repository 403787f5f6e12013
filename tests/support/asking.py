"""Predict calls of a `DataPlane`, run on the calling thread."""

from time import sleep
from typing import Any

from serving.inference.data_plane import DataPlane
from serving.protocol.codec import MESSAGE_CODECS
from serving.protocol.predict_method import PredictMethod


def ask(
    plane: DataPlane,
    request: Any,
    *,
    method: PredictMethod = PredictMethod.MODEL_INFER,
    **fields: Any,
) -> Any:
    """The answer of a call, or the status that says why; fields are those of `DataPlane.submit`."""
    answers: list[Any] = []
    plane.submit(MESSAGE_CODECS[method], request, answers.append, method=method, **fields)
    while not answers:
        if not plane.dispatcher.work():
            plane.dispatcher.expire()
            sleep(0.001)
    return answers[0]
