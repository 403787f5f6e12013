"""Limits of a serialized message, before protobuf or Python make an object of each part.

An empty input takes 2 bytes on the wire and a hundred in memory; a number of a packed array takes a
byte, and a hundred times as long to convert. Raw tensors are one field each.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from sharded_infer.errors import RequestTooLargeError

# Kinds of packed arrays: numbers of variable size, and the bytes of a number.
_PACKED, _FIXED32, _FIXED64 = "packed", 4, 8
_PARAMETERS: Final[Mapping[int, Any]] = {}


class MessageLimits(NamedTuple):
    """What a message may hold.

    Attributes:
        fields: of the message and of the nested ones.
        numbers: in packed arrays.
        nested: by field number, `nested` of a message or the kind of a packed array.
        parts: names of the fields in the error.
    """

    fields: int
    numbers: int
    nested: Mapping[int, Any]
    parts: str


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

# Wire types of https://protobuf.dev/programming-guides/encoding/, and bytes of fixed-size types.
# Group ends have none: the contents of a group count as if there were no group.
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 3: 0, 4: 0, 5: 4}
_LAST_BYTE = 0x80


def check_size(message: bytes | memoryview, limits: MessageLimits) -> None:
    """Raises RequestTooLargeError for too many parts; after a malformed one, none count."""
    counter = _Counter(message, limits)
    counter.count(limits.nested, 0, len(message))


class _Counter:
    def __init__(self, message: bytes | memoryview, limits: MessageLimits) -> None:
        self._message, self._limits = message, limits
        self._fields = self._numbers = 0

    def count(self, nested: Mapping[int, Any], begin: int, end: int) -> None:
        for number, kind, start, stop in _fields(self._message, begin, end):
            self._fields += 1
            inner = nested.get(number) if kind == _BYTES else None
            if inner == _PACKED:
                array = np.frombuffer(self._message, np.uint8, stop - start, start)
                self._numbers += int(np.count_nonzero(array < _LAST_BYTE))
            elif isinstance(inner, int):
                self._numbers += (stop - start) // inner
            elif inner is not None:
                self.count(inner, start, stop)
            self._check()

    def _check(self) -> None:
        limits = self._limits
        for found, most, unit in (
            (self._fields, limits.fields, "fields"),
            (self._numbers, limits.numbers, "numbers"),
        ):
            if found > most:
                raise RequestTooLargeError(
                    f"the message: expected at most {most} {unit}, got more: {limits.parts}"
                )


def _fields(message: bytes | memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, start and end of each field; stops at malformed bytes."""
    try:
        while at < end:
            tag, at = _varint(message, at)
            kind, begin = tag & 7, at
            if kind == _BYTES:
                size, begin = _varint(message, at)
                at = begin + size
            elif kind == _VARINT:
                _, at = _varint(message, at)
            else:
                at += _FIXED[kind]
            if at > end:
                return
            yield tag >> 3, kind, begin, at
    except (IndexError, KeyError):
        return


def _varint(message: bytes | memoryview, at: int) -> tuple[int, int]:
    value = message[at]
    at += 1
    if value < _LAST_BYTE:
        return value, at
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _LAST_BYTE:
            return value, at
    raise IndexError("a number of more than 64 bits")
