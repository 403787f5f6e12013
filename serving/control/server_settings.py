"""Log and trace settings, by the protocol's names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any

from serving.errors import NotOfferedError
from serving.observability.log_levels import LogLevels
from sharded_infer.errors import RequestError

Setting = bool | int | str
_FLAGS = {"log_info": "info", "log_warnings": "warnings", "log_errors": "errors"}
_VERBOSE = "log_verbose_level"
# The protocol's settings with only one value here.
_FIXED_LOG = {"log_file": "", "log_format": "default"}
TRACE_SETTINGS: Mapping[str, str] = {
    "trace_file": "",
    "trace_level": "OFF",
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}
# The protocol's field for each type of value.
_KINDS = {bool: "bool_param", int: "uint32_param", str: "string_param", NoneType: None}


def log_settings(levels: LogLevels) -> dict[str, Setting]:
    """All log settings, with their values."""
    flags = {name: getattr(levels, attribute) for name, attribute in _FLAGS.items()}
    return {**flags, _VERBOSE: levels.verbose_level, **_FIXED_LOG}


def changed_levels(levels: LogLevels, changes: Mapping[str, Setting | None]) -> LogLevels:
    """Log levels after changes by setting name; None leaves a setting unchanged.

    Raises:
        RequestError: there is no such setting, or its value has another type.
        NotOfferedError: the setting has only one value here, and another was sent.
    """
    edits: dict[str, Any] = {}
    for name, value in changes.items():
        kind = _KINDS[type(value)]
        if value is None and name in {*_FLAGS, _VERBOSE, *_FIXED_LOG}:
            continue
        if name in _FLAGS and kind == "bool_param":
            edits[_FLAGS[name]] = value
        elif name == _VERBOSE and kind == "uint32_param":
            edits["verbose_level"] = value
        elif name in _FIXED_LOG and kind == "string_param":
            if value != _FIXED_LOG[name]:
                raise NotOfferedError(
                    f"log setting {name!r}: expected {_FIXED_LOG[name]!r}, the only one offered, "
                    f"got {value!r}"
                )
        else:
            raise RequestError(
                f"log setting {name!r}: expected bool_param for {', '.join(_FLAGS)}, uint32_param "
                f"for {_VERBOSE}, got {kind}"
            )
    return replace(levels, **edits)


def check_trace_changes(changes: Mapping[str, Sequence[str]]) -> None:
    """Accepts only present values, and empty lists, which reset a setting.

    Raises:
        RequestError: there is no such setting.
        NotOfferedError: the values differ from those here.
    """
    for name, values in changes.items():
        if name not in TRACE_SETTINGS:
            known = ", ".join(TRACE_SETTINGS)
            raise RequestError(f"trace setting {name!r}: expected one of {known}")
        if values and list(values) != [TRACE_SETTINGS[name]]:
            raise NotOfferedError(
                f"trace setting {name!r}: expected {TRACE_SETTINGS[name]!r}, the only one offered: "
                f"requests are not traced here, got {', '.join(values)!r}"
            )
