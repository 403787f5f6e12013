"""An element of an untrusted JSON document, read only as the type that the caller expects."""

import itertools
import json
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from sharded_infer.errors import TowerError

# Characters of a value in a message: enough to recognise it on one line of a log.
_SHOWN_CHARACTERS = 60


class _Beginning(reprlib.Repr):
    """Formats only the first parts of a value; values can be large and errors frequent."""

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        # `reprlib` sorts all keys first, which is slow for large objects.
        more = ", ..." if len(x) > self.maxdict else ""
        few = dict(itertools.islice(x.items(), self.maxdict))
        pairs = (f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in few.items())
        return f"{{{', '.join(pairs)}{more}}}" if level > 0 else "{...}"


_BEGINNING = _Beginning()
_BEGINNING.maxstring = _SHOWN_CHARACTERS


@dataclass(frozen=True, slots=True)
class Element:
    """A JSON value and its position in the document, for error messages.

    Methods raise TowerError if the value is not of the requested type.
    """

    value: object
    where: str

    @classmethod
    def parse(cls, data: bytes, where: str) -> Self:
        """The root of the UTF-8 document in `data`; raises TowerError if it is not JSON."""
        try:
            return cls(json.loads(data), where)
        # The parser raises RecursionError for brackets that are nested too deeply.
        except (ValueError, RecursionError) as error:
            raise TowerError(f"{where}: not a JSON document: {error}") from error

    def refuse(self, expected: str) -> TowerError:
        """Makes the error that names the expected type and the actual value."""
        shown = _BEGINNING.repr(self.value)
        if len(shown) > _SHOWN_CHARACTERS:
            shown = shown[:_SHOWN_CHARACTERS] + "..."
        return TowerError(f"{self.where}: expected {expected}, got {shown}")

    def field(self, name: str) -> "Element":
        """An object's member `name`."""
        if not isinstance(self.value, dict) or name not in self.value:
            raise self.refuse(f"an object with the member {name!r}")
        return Element(self.value[name], f"{self.where}.{name[:_SHOWN_CHARACTERS]}")

    def members(self) -> Iterator[tuple[str, "Element"]]:
        """An object's names and values."""
        if not isinstance(self.value, dict):
            raise self.refuse("an object")
        for name, value in self.value.items():
            yield name, Element(value, f"{self.where}.{name[:_SHOWN_CHARACTERS]}")

    def elements(self) -> "list[Element]":
        """An array's elements."""
        if not isinstance(self.value, list):
            raise self.refuse("an array")
        return [Element(value, f"{self.where}[{i}]") for i, value in enumerate(self.value)]

    def union(self) -> "tuple[str, Element]":
        """The name and value of a tagged union: an object with one member, named after its kind."""
        members = list(self.members())
        if len(members) != 1:
            raise self.refuse("an object with exactly one member")
        return members[0]

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            raise self.refuse("a string")
        return self.value

    def boolean(self) -> bool:
        """`true` or `false`."""
        if not isinstance(self.value, bool):
            raise self.refuse("true or false")
        return self.value

    def integer(self) -> int:
        """A signed 64-bit integer, as torch's operators take."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.refuse("an integer")
        if not -(2**63) <= self.value < 2**63:
            raise self.refuse("an integer of at most 64 bits")
        return self.value

    def count(self) -> int:
        """A non-negative integer."""
        if self.integer() < 0:
            raise self.refuse("an integer that is not negative")
        return self.integer()

    def number(self) -> float:
        """A floating-point number; torch writes infinities and NaN as strings."""
        if self.value in ("Infinity", "-Infinity", "NaN"):
            return float(str(self.value))
        if not isinstance(self.value, int | float) or isinstance(self.value, bool):
            raise self.refuse("a number")
        try:
            return float(self.value)
        except OverflowError as error:
            raise self.refuse("a number") from error
