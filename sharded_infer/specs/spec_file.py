"""A model's spec to and from plain values, such as those of `model.toml`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from kernels.wording import nearest
from sharded_infer.errors import SpecError
from sharded_infer.files.toml_file import read_toml
from sharded_infer.specs.model_spec import ModelSpec, TowerSpec

_ADAPTER = TypeAdapter(ModelSpec)
_MOST_REASONS = 20
_LONGEST_VALUE = 200


def parse_spec(fields: Mapping[str, Any], where: str = "spec") -> ModelSpec:
    """Build a spec from values of source `where`; SpecError lists every invalid field."""
    try:
        # As JSON, whose strict mode takes lists and texts for tuples and formats, and rejects
        # `true` as a number.
        text = json.dumps(_with_tower_options(fields), default=str)
        return _ADAPTER.validate_json(text, strict=True)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ValidationError):
            raise SpecError(f"{where}: {_explain(error, fields)}") from error
        raise SpecError(f"{where}: expected names and plain values: {error}") from error


def _with_tower_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    # In TOML, the architecture's sizes are beside our own keys of [tower].
    tower = fields.get("tower")
    if not isinstance(tower, Mapping) or tower.get("architecture") is None:
        return dict(fields)
    own = {key: value for key, value in tower.items() if key in TowerSpec.__dataclass_fields__}
    sizes = {key: value for key, value in tower.items() if key not in own}
    own["options"] = {**own.get("options", {}), **sizes}
    return {**fields, "tower": own}


# Defaults of `serving` to omit, for readers that do not know such a key.
_LEFT_OUT = {"memory": "auto", "remote_sums": "fp32"}


def dump_spec(spec: ModelSpec) -> dict[str, Any]:
    """The spec as plain values for `parse_spec`."""
    values: dict[str, Any] = _ADAPTER.dump_python(spec, mode="json", exclude_none=True)
    for key, default in _LEFT_OUT.items():
        if values["serving"][key] == default:
            del values["serving"][key]
    # Older readers refuse the key.
    if spec.release.is_empty:
        del values["release"]
    for sequence in values["sequences"].values():
        if not sequence["ids"]:
            del sequence["ids"]
    if not spec.sequences:
        del values["sequences"]
    if not spec.tower.user_inputs:
        del values["tower"]["user_inputs"]
    for table in values["tables"]:
        if not table["id_steps"]:
            del table["id_steps"]
    return values


def load_spec(path: Path | str) -> ModelSpec:
    """Read `model.toml`; SpecError if missing, not TOML or invalid."""
    return parse_spec(read_toml(Path(path), str(path), SpecError), str(path))


def _explain(error: ValidationError, fields: Mapping[str, Any]) -> str:
    reasons = []
    problems = error.errors(include_url=False)
    holders = {problem["loc"][:n] for problem in problems for n in range(len(problem["loc"]))}
    # Its items were omitted because of problems of their own.
    relevant = [p for p in problems if p["type"] != "too_short" or p["loc"] not in holders]
    for problem in relevant[:_MOST_REASONS]:
        value: Any = fields
        words: list[str] = []
        for step in problem["loc"]:
            # A missing step names a missing key, or one of several types.
            value = value[step] if _has(value, step) else value
            named = isinstance(value, Mapping) and isinstance(value.get("name"), str)
            if isinstance(step, int) and named:
                words[-1] = words[-1].rstrip("s") + f" {value['name']!r}"
            elif isinstance(step, int):
                words[-1] += f"[{step}]"
            else:
                words.append(str(step))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "unexpected_keyword_argument":
            message += _hint(problem["loc"])
        came = "" if problem["type"] in {"missing", "value_error"} else f", got {_short(value)}"
        reasons.append(": ".join([*words, message]) + came)
    if len(relevant) > _MOST_REASONS:
        reasons.append(f"and {len(relevant) - _MOST_REASONS} more")
    return "; ".join(reasons)


def _short(value: object) -> str:
    said = repr(value)
    return said if len(said) <= _LONGEST_VALUE else f"{said[:_LONGEST_VALUE]}…"


def _hint(place: Sequence[Any]) -> str:
    kinds: list[Any] = [ModelSpec]
    for step in place[:-1]:
        owners = [owner for owner in kinds if step in get_type_hints(owner)]
        # A step that is no field is a number, or names one of several types.
        if owners:
            kinds = [kind for one in owners for kind in _dataclasses(get_type_hints(one)[step])]
    known = [field.name for kind in kinds for field in fields_of(kind)]
    near = nearest(str(place[-1]), known)
    return "" if near is None else f" (did you mean {near!r}?)"


def _dataclasses(hint: Any) -> Iterator[Any]:
    if is_dataclass(hint):
        yield hint
    for part in get_args(hint):
        yield from _dataclasses(part)


def _has(value: Any, step: Any) -> bool:
    if isinstance(value, Mapping):
        return step in value
    return isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)
