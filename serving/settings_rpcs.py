"""The protocol's RPCs about the server's own settings: logs and traces."""

from dataclasses import replace
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from serving.log_control import LogControl, LogLevels
from serving.model_store import ModelStore
from serving.refusals import NotOfferedError
from serving.status import status_of
from sharded_infer.errors import RequestError

_FLAGS = {"log_info": "info", "log_warnings": "warnings", "log_errors": "errors"}
_VERBOSE = "log_verbose_level"
# Settings of the protocol that have one value here.
_FIXED_LOG = {"log_file": "", "log_format": "default"}
_TRACE = {
    "trace_file": "",
    "trace_level": "OFF",
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}


class SettingsRpcs:
    """What is logged can be changed; requests are not traced by these RPCs."""

    def __init__(self, store: ModelStore, logs: LogControl) -> None:
        """Keeps what the RPCs need.

        Args:
            store: the loaded versions.
            logs: of the server.
        """
        self._store = store
        self._logs = logs

    def LogSettings(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Changes what is logged, and says what is."""
        try:
            self._logs.change(lambda levels: _changed(levels, request.settings))
        except Exception as error:
            context.abort(*status_of(error))
        response = service_pb2.LogSettingsResponse()
        levels = self._logs.levels
        for name, attribute in _FLAGS.items():
            response.settings[name].bool_param = getattr(levels, attribute)
        response.settings[_VERBOSE].uint32_param = levels.verbose_level
        for name, value in _FIXED_LOG.items():
            response.settings[name].string_param = value
        return response

    def TraceSetting(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Says that requests are not traced; other settings are refused."""
        try:
            if request.model_name:
                self._store.get(request.model_name)
            for name, setting in request.settings.items():
                _check_trace(name, list(setting.value))
        except Exception as error:
            context.abort(*status_of(error))
        response = service_pb2.TraceSettingResponse()
        for name, value in _TRACE.items():
            response.settings[name].value.append(value)
        return response


def _changed(levels: LogLevels, settings: Any) -> LogLevels:
    for name, setting in settings.items():
        kind = setting.WhichOneof("parameter_choice")
        if kind is None and name in {*_FLAGS, _VERBOSE, *_FIXED_LOG}:
            continue  # as it is
        if name == "log_info" and kind == "bool_param":
            levels = replace(levels, info=setting.bool_param)
        elif name == "log_warnings" and kind == "bool_param":
            levels = replace(levels, warnings=setting.bool_param)
        elif name == "log_errors" and kind == "bool_param":
            levels = replace(levels, errors=setting.bool_param)
        elif name == _VERBOSE and kind == "uint32_param":
            levels = replace(levels, verbose_level=setting.uint32_param)
        elif name in _FIXED_LOG and kind == "string_param":
            if setting.string_param != _FIXED_LOG[name]:
                raise NotOfferedError(
                    f"log setting {name!r}: expected {_FIXED_LOG[name]!r}, the only one offered, "
                    f"got {setting.string_param!r}"
                )
        else:
            raise RequestError(
                f"log setting {name!r}: expected bool_param for {', '.join(_FLAGS)}, uint32_param "
                f"for {_VERBOSE}, got {kind}"
            )
    return levels


def _check_trace(name: str, values: list[str]) -> None:
    if name not in _TRACE:
        raise RequestError(f"trace setting {name!r}: expected one of {', '.join(_TRACE)}")
    # None: back to what it was.
    if values and values != [_TRACE[name]]:
        raise NotOfferedError(
            f"trace setting {name!r}: expected {_TRACE[name]!r}, the only one offered: requests "
            f"are not traced here, got {', '.join(values)!r}"
        )
