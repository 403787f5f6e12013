"""TOML files that users write, within what Python's reader takes in good time.

It copies the whole of a key for each of its steps: one of 20,000 takes 10 s and 1.7 GB.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from sharded_infer.errors import ShardedInferError
from sharded_infer.regular_file import read_regular

# 100,000 tables with all that a spec says of each take 20 MB.
MOST_TOML_BYTES = 32 * 2**20
MOST_KEY_STEPS = 32

_STEP = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
# Text with so many dots between single words is refused, too: no name or note has them.
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_STEP}(?:[ \t]*+\.[ \t]*+{_STEP}){{{MOST_KEY_STEPS}}}")


def read_toml(path: Path, named: str, error_type: type[ShardedInferError]) -> dict[str, Any]:
    """Reads a TOML file.

    Args:
        path: the file.
        named: what errors call it.
        error_type: of what is raised.

    Raises:
        ShardedInferError: of that type: no such file, not TOML, larger or nested more deeply than
            allowed, or a key of too many steps.
    """
    try:
        data = read_regular(path, MOST_TOML_BYTES, follow=True)
    except OSError as error:
        raise error_type(f"{named}: cannot be read: {error.strerror}") from error
    try:
        return parse_toml(data.decode())
    # Beside syntax: bytes that are no UTF-8, and integers of thousands of digits.
    except ValueError as error:
        raise error_type(f"{named}: not TOML: {error}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a TOML document.

    Raises:
        ValueError: it is none, is nested too deeply, or has a key of too many steps.
    """
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
