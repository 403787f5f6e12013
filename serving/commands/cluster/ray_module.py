"""Imports what needs Ray."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from serving.commands.lazy_group import load_by_name
from sharded_infer.errors import InputError


@contextmanager
def ray_module(target: str) -> Iterator[Any]:
    """Imports it, and keeps what Ray prints out of standard output.

    Args:
        target: `module:attribute`.

    Raises:
        InputError: Ray is not installed.
    """
    try:
        loaded = load_by_name(target)
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError(
            "Ray is not installed: pip install 'sharded-infer[ray]', on every machine"
        ) from error
    # Ray says there what has become of nodes; standard output is for what the commands answer.
    with redirect_stdout(sys.stderr):
        yield loaded
