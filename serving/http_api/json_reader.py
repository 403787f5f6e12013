"""A strict reader of clients' JSON, which refuses ambiguous documents."""

import json
from typing import Any, NoReturn

from sharded_infer.errors import RequestError, RequestTooLargeError
from sharded_infer.repeats import repeated

# Python objects take up to 20 times the memory of their JSON text, so tensors belong in binary.
MOST_JSON_BYTES = 16 * 2**20
# Reading holds the interpreter's lock: 60 ms for as many values, of which as many hold others.
MOST_VALUES = 2**20
MOST_COLLECTIONS = 2**17


def read_object(text: bytes) -> dict[str, Any]:
    """Reads a JSON object in UTF-8; empty text is an empty object.

    Raises:
        RequestError: the text is not a JSON object, an object repeats a name, a number is NaN or
            infinite, or the nesting is too deep.
        RequestTooLargeError: it is larger than `MOST_JSON_BYTES`, or has more than `MOST_VALUES`
            commas or `MOST_COLLECTIONS` opening brackets; those in strings count too.
    """
    if not text:
        return {}
    if len(text) > MOST_JSON_BYTES:
        raise RequestTooLargeError(
            f"the JSON is {len(text)} bytes, expected at most {MOST_JSON_BYTES}: send tensors in "
            "binary"
        )
    collections = text.count(b"[") + text.count(b"{")
    if collections > MOST_COLLECTIONS or text.count(b",") > MOST_VALUES:
        raise RequestTooLargeError(
            f"the JSON has more than {MOST_VALUES} values, or more than {MOST_COLLECTIONS} lists "
            "and objects: send tensors in binary"
        )
    try:
        value = json.loads(
            text.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except RequestError:
        raise
    except RecursionError as error:
        raise RequestError("the JSON is nested too deeply") from error
    except ValueError as error:
        # Invalid UTF-8, invalid JSON, and integers of thousands of digits.
        raise RequestError(f"the JSON is unreadable: {error}") from error
    if not isinstance(value, dict):
        raise RequestError(f"expected a JSON object, got {kind_of(value)}")
    return value


def text_of(value: object, what: str) -> str:
    """Checks for a string that UTF-8 can encode; RequestError names the value `what`."""
    if not isinstance(value, str):
        raise RequestError(f"{what}: expected a string, got {kind_of(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{what}: half of a surrogate pair is no text") from error
    return value


def object_of(value: object, what: str) -> dict[str, Any]:
    """Checks for an object, None becoming {}; RequestError names the value `what`."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"{what}: expected an object, got {kind_of(value)}")
    return value


def objects_of(value: object, what: str) -> list[dict[str, Any]]:
    """Checks for a list of objects, None becoming []; RequestError names the value `what`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise RequestError(f"{what}: expected a list of objects, got {kind_of(value)}")
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise RequestError(f"{what}[{number}]: expected an object, got {kind_of(item)}")
    return value


def whole_number(value: object, what: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """Checks for an integer in a range; RequestError names the value `what`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{what}: expected a whole number, got {kind_of(value)}")
    if not least <= value <= most:
        raise RequestError(f"{what}: expected a whole number from {least} to {most}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = repeated(name for name, _ in pairs)[0]
        raise RequestError(f"the JSON has {twice[:100]!r} twice in one object")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise RequestError(f"the JSON holds {text}, which is no JSON: send the tensor in binary")


def kind_of(value: object) -> str:
    """The JSON type of a value, with its article."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return kinds.get(type(value), "a number")
