"""Invalid specs in Python as errors of the package."""

import dataclasses
from collections.abc import Sequence
from functools import wraps
from typing import Any, TypeVar

from pydantic import ValidationError

from sharded_infer.errors import SpecError

_T = TypeVar("_T")
_LONGEST_VALUE = 200


def spec_errors(kind: type[_T]) -> type[_T]:
    """Let a pydantic dataclass raise SpecError, with every invalid field, when it is made."""
    # Not `__init__` of an instance, which mypy would not let be replaced.
    fields: Any = kind
    validated = fields.__init__

    @wraps(validated)
    def __init__(self: Any, *arguments: Any, **values: Any) -> None:  # noqa: N807 - it is one
        try:
            validated(self, *arguments, **values)
        except ValidationError as error:
            names = [field.name for field in dataclasses.fields(fields)]
            raise SpecError(f"{kind.__name__}: {_explained(error, names)}") from error

    fields.__init__ = __init__
    return kind


def _explained(error: ValidationError, names: Sequence[str]) -> str:
    reasons = []
    for problem in error.errors(include_url=False):
        first, *rest = problem["loc"] or ("",)
        # Of an argument by position.
        first = names[first] if isinstance(first, int) and first < len(names) else first
        place = ".".join(map(str, (first, *rest)))
        reason = problem["msg"].removeprefix("Value error, ")
        came = f", got {problem['input']!r}" if problem["type"] != "value_error" else ""
        reasons.append(f"{place}: {reason}{came:.{_LONGEST_VALUE}}" if place else reason)
    return "; ".join(reasons)
