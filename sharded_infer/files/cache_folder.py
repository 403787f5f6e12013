"""The folder of data that is kept between runs and can be recreated."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["CACHE_VARIABLE", "cache_folder"]

CACHE_VARIABLE: Final = "SHARDED_INFER_CACHE"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder SHARDED_INFER_CACHE, else one of the user's; RuntimeError without a home."""
    if folder := environment.get(CACHE_VARIABLE):
        return Path(folder)
    users = environment.get("XDG_CACHE_HOME")
    return (Path(users) if users else Path.home() / ".cache") / "sharded-infer"
