"""Messages and bodies with random faults, most of which a reader must look into to see."""

import re
from collections.abc import Callable, Iterator
from random import Random

from sharded_infer.v1.wire import varint

# Of tags, varints and numbers, these are where something begins or ends.
_EDGES = (0, 1, 2, 3, 127, 128, 255)
_TOKENS = re.compile(rb'"[^"]*"|[-+.\w]+|\s+|.', re.DOTALL)
_ODD_TOKENS = (
    *(b"null", b"true", b"0", b"-0", b"-1", b"1.5", b"1e400", b"2147483648"),
    *(b"9223372036854775808", b'""', rb'"\u0061"', b'"a', b"\xff", b" "),
    *(b"[", b"]", b"[]", b"{", b"}", b"{}", b",", b":"),
)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Change = Callable[[bytes, Random], bytes]


def mutations(message: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Copies of a protobuf message, each with up to three faults."""
    chance = Random(seed)
    for _ in range(count):
        yield mutated(message, chance, fields_changed)


def mutated(message: bytes, chance: Random, change: Change) -> bytes:
    """A copy with one to three changes, each of its bytes or by `change`."""
    for _ in range(chance.randint(1, 3)):
        message = chance.choice((bytes_changed, change))(message, chance)
    return message


def bytes_changed(message: bytes, chance: Random) -> bytes:
    """Changes a byte; inserts, leaves out or repeats a part; or cuts the end off."""
    changed, size = bytearray(message), len(message)
    if not size:
        return chance.randbytes(2)
    at, other, count = chance.randrange(size), chance.randrange(size), chance.randint(1, 12)
    match chance.randrange(7):
        case 0:
            changed[at] = chance.randrange(256)
        case 1:
            changed[at] ^= 1 << chance.randrange(8)
        case 2:
            changed[at] = chance.choice(_EDGES)
        case 3:
            changed[at:at] = changed[other : other + count]
        case 4:
            del changed[at : at + count]
        case 5:
            changed[at : at + count] = changed[other : other + count]
        case _:
            del changed[at:]
    return bytes(changed)


def fields_changed(message: bytes, chance: Random) -> bytes:
    """Repeats, moves, leaves out or changes a field, or says that it is longer or shorter."""
    try:
        fields = list(_fields(message))
    except IndexError:
        return bytes_changed(message, chance)
    if not fields:
        return bytes_changed(message, chance)
    at, kind = chance.randrange(len(fields)), chance.randrange(7)
    tag, content = fields[at]
    if kind == 0:
        fields.insert(chance.randint(0, len(fields)), fields[at])
    elif kind == 1:
        fields.insert(chance.randrange(len(fields)), fields.pop(at))
    elif kind == 2:
        del fields[at]
    elif kind == 3:
        other = chance.randrange(1, 16) << 3 | tag & 7
        fields[at] = other, content
    elif kind == 4 and tag & 7 == _BYTES:
        longer = max(0, len(content) + chance.choice((-8, -4, -1, 1, 4, 8, 1 << 31, 1 << 62)))
        written = b"".join(map(_written, fields[:at])) + varint(tag) + varint(longer) + content
        return written + b"".join(map(_written, fields[at + 1 :]))
    else:
        # What is around it stays right.
        change = chance.choice((bytes_changed, fields_changed))
        fields[at] = tag, change(content, chance) if tag & 7 == _BYTES else content[::-1]
    return b"".join(map(_written, fields))


def tokens_changed(text: bytes, chance: Random) -> bytes:
    """Repeats, exchanges, leaves out or replaces tokens of JSON."""
    tokens = _TOKENS.findall(text) or [b""]
    at, other = chance.randrange(len(tokens)), chance.randrange(len(tokens))
    match chance.randrange(5):
        case 0:
            tokens.insert(other, tokens[at])
        case 1:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case 2:
            del tokens[at]
        case 3:
            tokens[at] = chance.choice(_ODD_TOKENS)
        case _:
            first, last = sorted((at, other))
            tokens[first:first] = tokens[first : min(last, first + 20)]
    return b"".join(tokens)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents; raises IndexError for what is no message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        begin = at
        size = {_FIXED64: 8, _FIXED32: 4}.get(tag & 7, 0)
        if tag & 7 == _BYTES:
            size, begin = _varint(message, at)
        elif tag & 7 == _VARINT:
            size = _varint(message, at)[1] - at
        at = begin + size
        if at > len(message) or tag & 7 not in (_VARINT, _FIXED64, _BYTES, _FIXED32):
            raise IndexError(at)
        yield tag, message[begin:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _written(field: tuple[int, bytes]) -> bytes:
    tag, content = field
    return varint(tag) + (varint(len(content)) if tag & 7 == _BYTES else b"") + content
