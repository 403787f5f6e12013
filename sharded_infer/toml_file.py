"""TOML files that users write."""

import tomllib
from pathlib import Path
from typing import Any

from sharded_infer.errors import ShardedInferError


def read_toml(path: Path, named: str, error_type: type[ShardedInferError]) -> dict[str, Any]:
    """Reads a TOML file.

    Args:
        path: the file.
        named: what errors call it.
        error_type: of what is raised.

    Raises:
        ShardedInferError: of that type: no such file, or not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise error_type(f"{named}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise error_type(f"{named}: not TOML: {error}") from error
