"""Bounds of every command's numbers, whatever an option says of its own."""

import functools
from collections.abc import Callable
from typing import Any

from serving.setting import LARGEST
from sharded_infer.errors import InputError


def with_bounds(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that refuses numbers that are not finite, or beyond what C's int holds.

    Raises:
        InputError: names the option, what was expected and what came.
    """

    @functools.wraps(command)
    def bounded(*args: Any, **values: Any) -> Any:
        for name, value in values.items():
            for one in value if isinstance(value, list | tuple) else (value,):
                # Not a number is below and above nothing.
                if isinstance(one, int | float) and not -LARGEST <= one <= LARGEST:
                    raise InputError(
                        f"--{name.replace('_', '-')}: expected a number from {-LARGEST} to "
                        f"{LARGEST}, got {_shown(one)}"
                    )
        return command(*args, **values)

    return bounded


def _shown(number: float) -> str:
    if isinstance(number, int) and abs(number) > 10**40:
        return f"one of {len(str(abs(number)))} digits"
    return str(number)
