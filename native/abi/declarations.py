"""The declarations of a header of native/abi/: the part of C++ that ctypes can describe.

    file        = { "namespace" NAME "{" file "}" | 'extern "C"' "{" file "}" | declaration }
    declaration = ("struct" | "class") NAME ";"                        Python has its address alone
                | "struct" NAME "{" { member } "}" ";"
                | "enum" [ "class" ] NAME ":" TYPE "{" { NAME [ "=" number ] "," } "}" ";"
                | "constexpr" TYPE NAME "=" number { "," NAME "=" number } ";"
                | "using" NAME "=" TYPE "(*)(" ... ")" ";"             a function's address
                | "EXPORTED..." TYPE NAME "(" { TYPE NAME [ "[]" ] "," } ")" ";"
    member      = TYPE NAME { "[" number "]" } { "," ... } ";"
                | the declaration of a member function, which Python does not see

Members have no initial values, as Python's begin with zeros. A number is an expression of literals,
constants and enumerators. A parameter `T* one` is one structure or null; `T many[]` is an address.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

MARKERS = ("EXPORTED", "EXPORTED_KEEPING_GIL", "EXPORTED_BOTH_WAYS")  # of exported.h
_TOKEN = re.compile(
    r'\s*([A-Za-z_]\w*(?:::[A-Za-z_]\w*)*|0x[0-9A-Fa-f]+|[\d.]+(?:e[-+]?\d+)?|"C"|<<|[^\s"<>])'
)
_WORD = re.compile(r"[A-Za-z_]")
_INTEGER = re.compile(r"(?:std::)?(u?int(?:8|16|32|64)_t)")
_SCALARS = ("bool", "char", "double", "float")
_END = "the end of the file"


class HeaderError(Exception):
    """Something that ctypes modules cannot be written from; the message has file and line."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type; `sizes` are those of an array, `many` is a parameter `NAME[]`."""

    name: str  # without its namespace
    pointers: int = 0
    constant: bool = False
    sizes: tuple[int, ...] = ()
    many: bool = False


@dataclass(frozen=True, slots=True)
class Structure:
    """A structure and its fields, in order."""

    qualified: str  # with its namespace
    fields: dict[str, Type]


@dataclass(frozen=True, slots=True)
class Function:
    """An exported function; `marker` is one of `MARKERS`."""

    marker: str
    result: Type
    parameters: dict[str, Type]


@dataclass(slots=True)
class Header:
    """A header's declarations by name, in order."""

    name: str
    includes: list["Header"] = field(default_factory=list)
    structures: dict[str, Structure] = field(default_factory=dict)
    enums: dict[str, tuple[Type, dict[str, int]]] = field(default_factory=dict)
    constants: dict[str, int | float] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set)
    function_types: set[str] = field(default_factory=set)
    functions: dict[str, Function] = field(default_factory=dict)

    @property
    def visible(self) -> list["Header"]:
        """The header and all that it includes."""
        headers = [self]
        for include in self.includes:
            headers += [header for header in include.visible if header not in headers]
        return headers

    def owner(self, structure: str) -> "Header | None":
        """The header that defines a structure; None if that is opaque, or of another kind."""
        return next((header for header in self.visible if structure in header.structures), None)

    def enum(self, name: str) -> Type | None:
        """The integer type of an enum."""
        kinds = (header.enums[name][0] for header in self.visible if name in header.enums)
        return next(kinds, None)


def read_header(path: Path) -> Header:
    """Reads a header, and those beside it that it includes; raises HeaderError."""
    return _Parser(path).header


class _Parser:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.header = Header(path.stem)
        self._tokens: list[tuple[str, int]] = []  # with its line
        for number, line in enumerate(path.read_text().splitlines(), 1):
            self._read_line(line.split("//")[0].strip(), number)
        self._at = 0
        self._namespaces: list[str] = []
        while self._next != _END:
            self._declaration()

    def _read_line(self, line: str, number: int) -> None:
        if not line.startswith("#"):
            self._tokens += [(token, number) for token in _TOKEN.findall(line)]
        elif include := re.fullmatch(r'#include "abi/(\w+)\.h"', line):
            if include[1] != "exported":
                self.header.includes.append(read_header(self._path.parent / f"{include[1]}.h"))
        elif not re.fullmatch(r"#pragma once|#include <\w+>", line):
            raise HeaderError(f"{self._path}:{number}: expected an include of abi/, got {line}")

    @property
    def _next(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else _END

    def _fail(self, what: str) -> NoReturn:
        line = self._tokens[min(self._at, len(self._tokens) - 1)][1]
        raise HeaderError(f"{self._path}:{line}: {what}")

    def _has(self, token: str) -> bool:
        has = self._next == token
        self._at += has
        return has

    def _take(self, *expected: str) -> str:
        token = self._next
        if token == _END or (expected and token not in expected):
            self._fail(f"expected {' or '.join(expected) or 'more'}, got {token}")
        self._at += 1
        return token

    def _name(self) -> str:
        if not _WORD.match(self._next) or "::" in self._next:
            self._fail(f"expected a name, got {self._next}")
        return self._take()

    def _declaration(self) -> None:
        kind = self._take()
        if kind == "namespace":
            self._block(self._take().split("::"))
        elif kind == "extern":
            self._take('"C"')
            self._block([])
        elif kind in ("struct", "class"):
            self._structure(kind)
        elif kind == "enum":
            self._enum()
        elif kind == "constexpr":
            self._constants()
        elif kind == "using":
            self._function_type()
        elif kind in MARKERS:
            self._function(kind)
        else:
            self._at -= 1
            self._fail(f"expected a declaration (see declarations.py), got {kind}")

    def _block(self, namespaces: list[str]) -> None:
        outside = self._namespaces
        self._namespaces = [*outside, *namespaces]
        self._take("{")
        while not self._has("}"):
            self._declaration()
        self._namespaces = outside

    def _structure(self, kind: str) -> None:
        name = self._name()
        if self._has(";"):
            self.header.opaque.add(name)
            return
        if kind == "class" or self.header.owner(name) is not None:
            self._fail(f"{name}: expected a struct, defined once among what a header includes")
        # Its own fields may point to it.
        self.header.opaque.add(name)
        fields: dict[str, Type] = {}
        self._take("{")
        while not self._has("}"):
            self._member(fields)
        self._take(";")
        self.header.structures[name] = Structure("::".join([*self._namespaces, name]), fields)

    def _member(self, fields: dict[str, Type]) -> None:
        base = self._base_type()
        while True:
            kind, name = self._pointers(base), self._name()
            if self._has("("):
                while not self._has(")"):
                    self._take()
                self._has("const")
                self._take(";")
                return
            self._check_size(kind)
            fields[name] = self._array(kind)
            if self._next == "=":
                self._fail(f"{name}: Python begins with zeros, not with initial values")
            if self._take(",", ";") == ";":
                return

    def _base_type(self) -> Type:
        constant = self._has("const")
        self._has("volatile")
        name = self._take()
        constant |= self._has("const")
        integer = _INTEGER.fullmatch(name)
        name = integer[1] if integer else name.split("::")[-1]
        if not integer and name not in (*_SCALARS, "void"):
            known = (
                name in (*header.structures, *header.enums, *header.opaque, *header.function_types)
                for header in self.header.visible
            )
            if not any(known):
                self._at -= 1
                self._fail(f"unknown type {name}: declare it, or include its header")
        return Type(name, constant=constant)

    def _pointers(self, base: Type) -> Type:
        pointers = 0
        while self._has("*"):
            pointers += 1
            self._has("const")
        return Type(base.name, pointers, base.constant)

    def _check_size(self, kind: Type) -> None:
        is_known = self.header.owner(kind.name) is not None
        is_opaque = any(kind.name in header.opaque for header in self.header.visible)
        if not kind.pointers and (kind.name == "void" or (is_opaque and not is_known)):
            self._fail(f"{kind.name} has no size: expected a pointer to it")

    def _array(self, kind: Type) -> Type:
        sizes: list[int] = []
        while self._has("["):
            sizes.append(self._whole_number("]"))
            self._take("]")
        return Type(kind.name, kind.pointers, kind.constant, tuple(sizes))

    def _number(self, *ends: str) -> int | float:
        known: dict[str, int | float] = {}
        for header in self.header.visible:
            known |= header.constants
            for _, enumerators in header.enums.values():
                known |= enumerators
        text = ""
        while self._next not in ends:
            token = self._next.split("::")[-1]
            if _WORD.match(token) and token not in known:
                self._fail(f"unknown constant {token}")
            text += str(known.get(token, token))
            self._take()
        try:
            number: int | float = eval(text.replace("/", "//"))  # noqa: S307 - has no names
        except (SyntaxError, TypeError):
            self._fail(f"expected a number, got {text}")
        return number

    def _whole_number(self, *ends: str) -> int:
        number = self._number(*ends)
        if not isinstance(number, int):
            self._fail(f"expected a whole number, got {number}")
        return number

    def _enum(self) -> None:
        self._has("class")
        name = self._name()
        self._take(":")
        enumerators: dict[str, int] = {}
        self.header.enums[name] = self._base_type(), enumerators
        self._take("{")
        number = 0
        while not self._has("}"):
            enumerator = self._name()
            if self._has("="):
                number = self._whole_number(",", "}")
            enumerators[enumerator] = number
            number += 1
            self._has(",")
        self._take(";")

    def _constants(self) -> None:
        self._base_type()
        while True:
            name = self._name()
            self._take("=")
            self.header.constants[name] = self._number(",", ";")
            if self._take() == ";":
                return

    def _function_type(self) -> None:
        name, text = self._name(), ""
        while not self._has(";"):
            text += self._take()
        if "(*)(" not in text:
            self._fail(f"{name}: expected the type of a function's address, got {text}")
        self.header.function_types.add(name)

    def _function(self, marker: str) -> None:
        result, name = self._pointers(self._base_type()), self._name()
        if not name.startswith("sharded_infer_"):
            self._fail(f"{name}: expected a name that begins with sharded_infer_")
        parameters: dict[str, Type] = {}
        self._take("(")
        while not self._has(")"):
            kind = self._pointers(self._base_type())
            parameter = self._name()
            if self._has("["):
                self._take("]")
                kind = Type(kind.name, kind.pointers + 1, kind.constant, many=True)
            self._check_size(kind)
            parameters[parameter] = kind
            if self._next != ")":
                self._take(",")
        self._take(";")
        self.header.functions[name] = Function(marker, result, parameters)
