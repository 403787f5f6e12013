"""A server of gRPC in front of a data plane, on the calling thread."""

import ctypes
import math
from collections.abc import Callable, Sequence
from time import sleep
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from serving.inference.data_plane import DataPlane
from serving.inference.predict_calls import PredictCalls
from serving.inference.unusual_calls import Arrival
from serving.protocol.predict_method import PredictMethod
from serving.protocol.predict_request import SentMessage
from serving.status import Status, StatusCode
from serving.transport.events import EVENT

METHODS = (None, PredictMethod.MODEL_INFER, PredictMethod.PREDICT)
INFER, PREDICT = 1, 2
CALL, CANCELLED = 0, 4
_RESPOND = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
)
_FINISH = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64,
    ctypes.c_void_p, ctypes.c_int64,
)  # fmt: skip
# As `DataPlane.take`.
Take = Callable[..., Sequence[int]]


class Wire:
    """Events as the compiled transport writes them, and the answers to it, by number of the call.

    Statuses of calls that Python refuses are among the answers.
    """

    def __init__(self) -> None:
        self.answers: dict[int, bytes | Status] = {}
        self._slots = 0
        self._respond = _RESPOND(self._answered)
        self._finish = _FINISH(self._finished)

    def attach(self, calls: PredictCalls) -> None:
        respond = ctypes.cast(self._respond, ctypes.c_void_p).value or 0
        finish = ctypes.cast(self._finish, ctypes.c_void_p).value or 0
        calls.attach((respond, finish, 0, 0, 0), METHODS, most_calls=2**20)
        _WIRES[calls] = self

    def take(
        self, take: Take, messages: Sequence[bytes], *, method: int = INFER, **fields: Any
    ) -> tuple[list[int], list[int]]:
        """The calls' numbers, and the positions that are left."""
        events = np.zeros(len(messages), EVENT)
        kept = [ctypes.create_string_buffer(message, len(message)) for message in messages]
        numbers = [self._number() for _ in messages]
        headers = ctypes.create_string_buffer(fields.pop("headers", b""))
        for at, message in enumerate(kept):
            event = {
                "call": numbers[at],
                "data": ctypes.addressof(message),
                "bytes": len(message),
                "method": method,
                "kind": CALL,
                "seconds_left": math.inf,
                "headers": ctypes.addressof(headers) if len(headers) > 1 else 0,
                "header_bytes": len(headers) - 1,
                **fields,
            }
            for name, value in event.items():
                events[name][at] = value
        event_of = lambda _: (method, ())  # noqa: E731
        left = list(take(events.ctypes.data, len(messages), METHODS, event_of))
        # Nothing is read after it was taken.
        for message in kept:
            ctypes.memset(message, 0xFF, len(message))
        return numbers, left

    def gone(self, take: Take, numbers: Sequence[int]) -> list[int]:
        """Events of clients that have gone; the positions that are left."""
        events = np.zeros(len(numbers), EVENT)
        events["call"], events["kind"], events["method"] = numbers, CANCELLED, INFER
        return list(take(events.ctypes.data, len(numbers), METHODS, lambda _: (INFER, ())))

    def submit(
        self,
        plane: DataPlane,
        message: bytes,
        method: PredictMethod = PredictMethod.MODEL_INFER,
        **fields: Any,
    ) -> int:
        """Submits a call as if compiled code had not taken it; fields are those of `Arrival`."""
        number = self._number()
        request = SentMessage(message, method.format)
        refusal = plane.submit(request, Arrival(method, number, **fields))
        if refusal is not None:
            self.answers[number] = refusal
        return number

    def _number(self) -> int:
        self._slots += 1
        return 7 << 32 | self._slots

    def _answered(self, _: int, call: int, message: int, size: int, ends: int) -> None:
        assert ends == 1 and call not in self.answers
        self.answers[call] = ctypes.string_at(message, size)

    def _finished(
        self, _: int, call: int, code: int, words: int, size: int, trailers: int, trailing: int
    ) -> None:
        assert call not in self.answers and not trailing
        [status] = [one for one in StatusCode if one.number == code]
        self.answers[call] = Status(status, ctypes.string_at(words, size).decode())


_WIRES: "WeakKeyDictionary[PredictCalls, Wire]" = WeakKeyDictionary()


def wire_of(plane: DataPlane) -> Wire:
    """The wire that is attached to a plane, or a new one."""
    if plane.compiled not in _WIRES:
        Wire().attach(plane.compiled)
    return _WIRES[plane.compiled]


def ask(
    plane: DataPlane,
    message: bytes,
    *,
    method: PredictMethod = PredictMethod.MODEL_INFER,
    **fields: Any,
) -> bytes | Status:
    """The answer of a submitted call, or its status; fields are those of `Arrival`."""
    wire = wire_of(plane)
    number = wire.submit(plane, message, method, **fields)
    while number not in wire.answers:
        if not plane.dispatcher.work():
            plane.dispatcher.expire()
            sleep(0.001)
    return wire.answers.pop(number)
