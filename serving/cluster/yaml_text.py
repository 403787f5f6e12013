"""Plain values as YAML 1.2: of its styles only blocks, and scalars as in JSON."""

import json
import re
from collections.abc import Mapping
from typing import Any

# Words that readers of YAML 1.1 and 1.2 take for texts.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
# Files of several lines, which literal blocks show as they are.
_FILE = re.compile(r"([!-~]([ -~]*[!-~])?\n\n?)+(?<!\n\n)")
_NOT_TEXTS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"])


def yaml_text(value: Mapping[str, Any]) -> str:
    """One document, without the line that separates documents."""
    return "\n".join(_mapping(value, "")) + "\n"


def _mapping(values: Mapping[str, Any], indent: str) -> list[str]:
    lines = []
    for key, value in values.items():
        name = f"{indent}{_scalar(key)}:"
        if isinstance(value, Mapping) and value:
            lines += [name, *_mapping(value, indent + "  ")]
        elif isinstance(value, list) and value:
            lines += [name, *_list(value, indent + "  ")]
        elif isinstance(value, str) and _FILE.fullmatch(value):
            lines += [f"{name} |", *(f"{indent}  {line}".rstrip() for line in value.splitlines())]
        else:
            lines.append(f"{name} {_scalar(value)}")
    return lines


def _list(values: list[Any], indent: str) -> list[str]:
    lines = []
    for value in values:
        if isinstance(value, Mapping) and value:
            first, *rest = _mapping(value, indent + "  ")
            lines += [f"{indent}- {first.lstrip()}", *rest]
        else:
            lines.append(f"{indent}- {_scalar(value)}")
    return lines


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXTS:
        return value
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    return json.dumps(value)


def _escaped(character: str) -> str:
    # JSON would write two halves.
    if character > "\uffff":
        return f"\\U{ord(character):08x}"
    return json.dumps(character)[1:-1]
