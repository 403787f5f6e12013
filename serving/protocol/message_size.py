"""Limit of a serialized request's fields, before protobuf makes an object of each.

An empty input takes 2 bytes on the wire and a hundred in memory; a map entry takes a microsecond
or more. A message within its byte limit could have 30 million. Tensors are one field each.
"""

from collections.abc import Iterator

from serving.protocol.message_format import MessageFormat
from sharded_infer.errors import RequestTooLargeError

# 4,096 inputs in shared memory have 40,000.
MOST_FIELDS = 2**17
# Fields that are messages with fields to count: inputs and outputs; user and candidates.
_NESTED = {MessageFormat.INFER: (5, 6), MessageFormat.PREDICT: (6, 7)}
# Wire types of https://protobuf.dev/programming-guides/encoding/, and bytes of fixed-size types.
# Group ends have none: the contents of a group count as if there were no group.
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 3: 0, 4: 0, 5: 4}


def check_fields(message: bytes, form: MessageFormat) -> None:
    """Raises RequestTooLargeError for too many fields; after a malformed one, none count."""
    nested, found = _NESTED[form], 0
    for number, begin, end in _fields(message, 0, len(message)):
        found += 1
        if number in nested:
            for _ in _fields(message, begin, end):
                found += 1
                if found > MOST_FIELDS:
                    break
        if found > MOST_FIELDS:
            raise RequestTooLargeError(
                f"the message: expected at most {MOST_FIELDS} fields, got more: inputs, outputs, "
                "parameters"
            )


def _fields(message: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field; stops at malformed bytes."""
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
            yield tag >> 3, begin, at
    except (IndexError, KeyError):
        return


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = message[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError("a number of more than 64 bits")
