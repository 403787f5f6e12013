"""JSON from clients, read strictly: one meaning, or none."""

import json
from typing import Any, NoReturn

from sharded_infer.errors import RequestError, RequestTooLargeError
from sharded_infer.repeats import repeated

# Python's objects take up to twenty times the room of their text: tensors belong in binary.
MOST_JSON_BYTES = 16 * 2**20


def read_object(text: bytes) -> dict[str, Any]:
    """Reads an object.

    Args:
        text: UTF-8; empty is an empty object.

    Raises:
        RequestError: it is no JSON, or no object; a name comes twice in an object, a number is NaN
            or infinite, or it is nested too deeply.
        RequestTooLargeError: it is larger than JSON may be.
    """
    if not text:
        return {}
    if len(text) > MOST_JSON_BYTES:
        raise RequestTooLargeError(
            f"the JSON is {len(text)} bytes, expected at most {MOST_JSON_BYTES}: send tensors in "
            "binary"
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
        # Bytes that are no UTF-8, text that is no JSON, and integers of thousands of digits.
        raise RequestError(f"the JSON is unreadable: {error}") from error
    if not isinstance(value, dict):
        raise RequestError(f"expected a JSON object, got {_kind(value)}")
    return value


def text_of(value: object, what: str) -> str:
    """A string that can be sent on as UTF-8.

    Args:
        value: from JSON.
        what: for the error.

    Raises:
        RequestError: it is none.
    """
    if not isinstance(value, str):
        raise RequestError(f"{what}: expected a string, got {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{what}: half of a surrogate pair is no text") from error
    return value


def object_of(value: object, what: str) -> dict[str, Any]:
    """An object.

    Args:
        value: from JSON; None is an empty one.
        what: for the error.

    Raises:
        RequestError: it is none.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"{what}: expected an object, got {_kind(value)}")
    return value


def objects_of(value: object, what: str) -> list[dict[str, Any]]:
    """A list of objects.

    Args:
        value: from JSON; None is an empty one.
        what: for the error.

    Raises:
        RequestError: it is none.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise RequestError(f"{what}: expected a list of objects, got {_kind(value)}")
    return [object_of(item if item is not None else 0, what) for item in value]


def whole_number(value: object, what: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number in a range.

    Args:
        value: from JSON.
        what: for the error.
        least: the smallest allowed.
        most: the largest allowed.

    Raises:
        RequestError: it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(f"{what}: expected a whole number, got {_kind(value)}")
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


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return kinds.get(type(value), "a number")
