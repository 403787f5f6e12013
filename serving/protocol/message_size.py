"""Limits of a serialized message, before protobuf or Python make an object of each part.

An empty input takes 2 bytes on the wire and a hundred in memory; a number of a packed array takes a
byte, and a hundred times as long to convert. Raw tensors are one field each.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from serving.abi import message_size as abi
from sharded_infer.errors import RequestTooLargeError

# Below, reading takes about a millisecond, and keeping the GIL is cheaper for all: a thread that
# releases it beside a busy one waits 5 ms for it.
LONG_BYTES = 1 << 24
# Kinds of packed arrays, as in native/abi/message_size.h.
_PACKED, _FIXED32, _FIXED64 = 0, -4, -8
_PARAMETERS: Final[Mapping[int, Any]] = {}
_UNITS = ("", "fields", "numbers")


class MessageLimits:
    """Most fields of a message and its nested ones, and most numbers of packed arrays."""

    def __init__(self, fields: int, numbers: int, nested: Mapping[int, Any], parts: str) -> None:
        """Limits of a kind of message.

        Args:
            nested: by field number, `nested` of a message or the kind of a packed array.
            parts: names of the fields in the error.
        """
        self.fields, self.numbers, self.parts = fields, numbers, parts
        self._rules = np.array(list(_rules(nested)), np.int32)
        self.native = abi.MessageLimits(fields, numbers, self._rules.ctypes.data, len(self._rules))


def _rules(nested: Mapping[int, Any]) -> Iterator[tuple[int, int, int]]:
    """`FieldRule` of native/abi/message_size.h, for each field of each message."""
    messages = [nested]
    for number, message in enumerate(messages):
        for field, kind in message.items():
            if isinstance(kind, int):
                yield number, field, kind
            else:
                yield number, field, len(messages)
                messages.append(kind)


_CONTENTS = {**dict.fromkeys((1, 2, 3, 4, 5), _PACKED), 6: _FIXED32, 7: _FIXED64}
_SPARSE = {2: _FIXED32, 3: _FIXED64, 4: _FIXED32, 5: _FIXED32, 8: _FIXED32}
_INPUTS = {1: _SPARSE, 2: {2: _FIXED32, 3: _FIXED32}}
# 4,096 inputs in shared memory have 40,000 fields. Typed contents are for small tensors.
INFER_LIMITS = MessageLimits(
    2**17,
    2**21,
    {5: {3: _PACKED, 4: _PARAMETERS, 5: _CONTENTS}, 6: {2: _PARAMETERS}},
    "inputs, outputs, parameters, numbers of shapes and of typed contents (raw contents have no "
    "such limit)",
)
PREDICT_LIMITS = MessageLimits(2**17, 2**25, {6: _INPUTS, 7: _INPUTS}, "features, numbers")
# A group has at most 8 fields, and a front asks for a group a rank.
LOOKUP_LIMITS = MessageLimits(2**15, 2**25, {4: {1: _FIXED32, 6: _FIXED32}}, "groups, pieces")
LEASE_LIMITS = MessageLimits(2**15, 2**15, {2: {}}, "versions")
HELD_LIMITS = MessageLimits(2**15, 2**15, {1: {}}, "versions")
# A filler stands before the sums of a group.
ANSWER_LIMITS = MessageLimits(2**17, 2**25, {3: _FIXED32, 5: _FIXED32}, "sums, numbers")


def check_size(message: bytes | memoryview, limits: MessageLimits) -> None:
    """Raises RequestTooLargeError for too many parts; after a malformed one, none count."""
    array = np.frombuffer(message, np.uint8)
    check = abi.check_size_keeping_gil if len(array) < LONG_BYTES else abi.check_size
    excess = check(limits.native, array.ctypes.data, len(array))
    if excess:
        most = (0, limits.fields, limits.numbers)[excess]
        raise RequestTooLargeError(
            f"the message: expected at most {most} {_UNITS[excess]}, got more: {limits.parts}"
        )
