"""Imports of modules that need Ray."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from serving.commands.lazy_group import load_by_name
from sharded_infer.errors import InputError


@contextmanager
def ray_module(target: str) -> Iterator[Any]:
    """Import `module:attribute` without Ray's prints on standard output; InputError without Ray."""
    try:
        loaded = load_by_name(target)
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError(
            "Ray is not installed: pip install 'sharded-infer[ray]', on every machine"
        ) from error
    # Ray prints the state of nodes there; standard output is for the commands' results.
    with redirect_stdout(sys.stderr):
        yield loaded
