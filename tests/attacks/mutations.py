"""Requests that were good once: bytes and fields changed at random, by a seed."""

from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

_BYTES = (0, 1, 2, 0x0A, 0x7F, 0x80, 0xFF)
_NUMBERS = (0, 1, 2, -1, 7, 255, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63), 2**64 - 1)
_FLOATS = (0.0, -1.0, 1e38, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    "",
    "x",
    "user",
    "user.lengths",
    "sparse.values",
    "INT32",
    "BYTES",
    "9" * 40,
    "\u00e9",
    "../1",
)
_MOST_CHANGES = 4


def mutated(message: bytes, other: bytes, kind: Callable[[], Any], random: Random) -> bytes:
    """A message with something wrong, or not.

    Args:
        message: a good one.
        other: another good one, of which parts may be put in.
        kind: makes an empty message of its type.
        random: decides.
    """
    if random.random() < 0.5:
        parsed = kind()
        parsed.MergeFromString(message)
        for _ in range(random.randint(1, _MOST_CHANGES)):
            _change_field(parsed, random)
        message = parsed.SerializeToString()
        if random.random() < 0.7:
            return message
    for _ in range(random.randint(1, _MOST_CHANGES)):
        message = random.choice((_flip, _cut, _repeat, _splice))(message, other, random)
    return message


def _flip(message: bytes, _: bytes, random: Random) -> bytes:
    if not message:
        return message
    changed = bytearray(message)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] = random.choice((*_BYTES, random.randrange(256)))
    return bytes(changed)


def _cut(message: bytes, _: bytes, random: Random) -> bytes:
    first, last = sorted(random.randint(0, len(message)) for _ in range(2))
    return message[:first] if random.random() < 0.3 else message[:first] + message[last:]


def _repeat(message: bytes, _: bytes, random: Random) -> bytes:
    first, last = sorted(random.randint(0, len(message)) for _ in range(2))
    return message[:last] + message[first:last] * random.randint(1, 3) + message[last:]


def _splice(message: bytes, other: bytes, random: Random) -> bytes:
    return message[: random.randint(0, len(message))] + other[random.randint(0, len(other)) :]


def _change_field(message: Any, random: Random) -> None:
    fields = message.DESCRIPTOR.fields
    field = random.choice([f for f, _ in message.ListFields()] or fields)
    if random.random() < 0.2:
        field = random.choice(fields)
    if random.random() < 0.15:
        message.ClearField(field.name)
        return
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    value = getattr(message, field.name)
    if is_map:
        entry = value[random.choice(("timeout", "priority", "label", "x"))]
        _change_field(entry, random)
    elif field.is_repeated:
        _change_repeated(value, field, random)
    elif field.message_type is not None:
        value.SetInParent()
        _change_field(value, random)
    else:
        _set(lambda new: setattr(message, field.name, new), field, random)


def _change_repeated(values: Any, field: FieldDescriptor, random: Random) -> None:
    place = random.randrange(len(values)) if len(values) else None
    choice = random.random()
    if field.message_type is not None:
        if place is None or choice < 0.1:
            _change_field(values.add(), random)
        elif choice < 0.2:
            del values[place]
        elif choice < 0.3:
            values.add().CopyFrom(values[place])
        else:
            _change_field(values[place], random)
    elif place is None or choice < 0.2:
        _set(values.append, field, random)
    elif choice < 0.4:
        del values[place]
    else:
        _set(lambda new: values.__setitem__(place, new), field, random)


def _set(put: Callable[[Any], None], field: FieldDescriptor, random: Random) -> None:
    kinds = FieldDescriptor
    if field.cpp_type == kinds.CPPTYPE_STRING:
        text = random.choice(_TEXTS)
        put(text.encode() if field.type == kinds.TYPE_BYTES else text)
    elif field.cpp_type in {kinds.CPPTYPE_FLOAT, kinds.CPPTYPE_DOUBLE}:
        put(random.choice(_FLOATS))
    elif field.cpp_type == kinds.CPPTYPE_BOOL:
        put(random.random() < 0.5)
    else:
        bits = 64 if field.cpp_type in {kinds.CPPTYPE_INT64, kinds.CPPTYPE_UINT64} else 32
        unsigned = field.cpp_type in {kinds.CPPTYPE_UINT32, kinds.CPPTYPE_UINT64}
        low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        put(random.choice([number for number in _NUMBERS if low <= number <= high]))
