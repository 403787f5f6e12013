"""Predict calls of a `DataPlane`, run on the calling thread."""

from time import sleep
from typing import Any

from serving.inference.data_plane import Arrival, DataPlane
from serving.protocol.codec import MESSAGE_CODECS
from serving.protocol.infer_answer import Answer
from serving.protocol.predict_method import PredictMethod
from serving.status import Status


def ask(
    plane: DataPlane,
    request: Any,
    *,
    method: PredictMethod = PredictMethod.MODEL_INFER,
    **fields: Any,
) -> Any:
    """The answer of a call, or the status that says why; fields are those of `Arrival`."""
    answers: list[Any] = []
    arrival = Arrival(method, **fields)
    plane.submit(MESSAGE_CODECS[method], request, answers.append, arrival)
    while not answers:
        if not plane.dispatcher.work():
            plane.dispatcher.expire()
            sleep(0.001)
    return outcome_of(answers[0])


def outcome_of(outcome: Answer | Status) -> bytes | Status:
    """A serialized answer, or a status."""
    return outcome.body if isinstance(outcome, Answer) else outcome
