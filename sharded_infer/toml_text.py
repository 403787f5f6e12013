"""Plain values as the text of a TOML file."""

import json
import re
from collections.abc import Mapping
from typing import Any

from sharded_infer.errors import InternalError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(values: Mapping[str, Any]) -> str:
    """Plain values as TOML (v1.0), which `tomllib` reads back as they are.

    Args:
        values: of strings, numbers, truth values, lists and mappings by string.
    """
    return "\n".join(_section(values, ())).lstrip("\n") + "\n"


def _section(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines, below = [], []
    for key, value in values.items():
        name = ".".join(map(_key, (*path, key)))
        if isinstance(value, Mapping):
            below += ["", f"[{name}]", *_section(value, (*path, key))]
        elif _is_tables(value):
            for one in value:
                below += ["", f"[[{name}]]", *_section(one, (*path, key))]
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    # A section's own keys stand before the sections in it.
    return lines + below


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items())} }}"
    raise InternalError(f"TOML has no {type(value).__name__}")


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but DEL must be escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
