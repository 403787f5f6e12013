"""TOML files: read within bounds that Python's reader handles quickly, and written.

The reader copies the whole of a key for each of its steps: one of 20,000 takes 10 s and 1.7 GB.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharded_infer.errors import InternalError, ShardedInferError
from sharded_infer.files.regular_file import read_regular

# 100,000 fully specified tables take 20 MB.
MOST_TOML_BYTES = 32 * 2**20
MOST_KEY_STEPS = 32

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

_STEP = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
# Text with so many dots between single words is refused too: no name or note has them.
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_STEP}(?:[ \t]*+\.[ \t]*+{_STEP}){{{MOST_KEY_STEPS}}}")


def read_toml(path: Path, named: str, error_type: type[ShardedInferError]) -> dict[str, Any]:
    """Read a TOML file, named `named` in errors.

    Raises `error_type` if the file is missing, not TOML, too large or too deeply nested, or a key
    has too many steps.
    """
    try:
        data = read_regular(path, MOST_TOML_BYTES, follow=True)
    except OSError as error:
        raise error_type(f"{named}: cannot be read: {error.strerror}") from error
    try:
        return parse_toml(data.decode())
    # Beside syntax: bytes that are not UTF-8, and integers of thousands of digits.
    except ValueError as error:
        raise error_type(f"{named}: not TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; ValueError if it is invalid, too deeply nested, or a key has too many steps."""
    long_key = _LONG_KEY.search(text)
    if long_key is not None:
        line = text.count("\n", 0, long_key.start()) + 1
        raise ValueError(
            f"line {line}: a key of more than {MOST_KEY_STEPS} steps: {long_key[0][:60]}…"
        )
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def toml_text(values: Mapping[str, Any]) -> str:
    """Plain values as TOML (v1.0), which `tomllib` reads back unchanged."""
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
    # A section's own keys precede its subsections.
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
