"""HTTP operations except predict calls: JSON to and from the control plane."""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import asdict
from time import monotonic
from typing import Any

from serving.control.control_plane import ControlPlane
from serving.control.prepare_messages import request_of_json
from serving.http_api.exchange import HttpAnswer, HttpRequest, error_answer, json_answer
from serving.http_api.json_reader import object_of, read_object, text_of, whole_number
from serving.http_api.operations.model_documents import (
    config_document,
    entry_document,
    metadata_document,
    region_document,
    statistics_document,
)
from sharded_infer.errors import RequestError

_MOST_UINT = 2**64 - 1
_EMPTY = HttpAnswer(200, kind="")


class ModelApi:
    """Answers every operation of `routes.ROUTES` except ModelInfer. Thread-safe."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    def answer(
        self,
        operation: str,
        names: Mapping[str, str],
        request: HttpRequest,
        is_active: Callable[[], bool],
    ) -> HttpAnswer:
        """Answers a request with the path's `names`; may block while a model loads.

        Raises:
            RequestError: the body is not valid for the operation.
            ShardedInferError: the control plane refuses the request.
        """
        name = {key: text_of(value, f"the path's {key}") for key, value in names.items()}
        if operation.startswith("Model") and "Trace" not in operation:
            version = name.get("version", "")
            if operation.startswith("ModelPrepare"):
                return self._prepare(name["model"], version, read_object(request.body))
            return self._model(operation.removesuffix("Version"), name["model"], version)
        if operation.startswith("Repository"):
            return self._repository(operation, name, read_object(request.body), is_active)
        if operation.startswith("SystemMemory"):
            return self._system_memory(operation, name.get("region", ""), request)
        if operation.startswith("CudaMemory"):
            return self._cuda_memory(operation, name.get("region", ""), request)
        if "Trace" in operation:
            return self._trace(operation, name.get("model", ""), request)
        if operation.startswith("Logging"):
            return self._logging(operation, request)
        return self._server(operation)

    def _prepare(self, model: str, version: str, body: Mapping[str, Any]) -> HttpAnswer:
        milliseconds = object_of(body.get("parameters"), "parameters").get("timeout_ms", 1000)
        seconds = whole_number(milliseconds, "timeout_ms", most=_MOST_UINT) / 1000
        request = request_of_json(body, model, version)
        answer = self._control.prepare(request, monotonic() + seconds)
        return json_answer(
            {
                "model_name": answer.model,
                "model_version": str(answer.version),
                "known_positions": answer.known_positions,
                "computed_positions": answer.computed_positions,
            }
        )

    def _server(self, operation: str) -> HttpAnswer:
        if operation == "ServerMetadata":
            return json_answer(asdict(self._control.server()))
        if operation == "AllStatistics":
            return json_answer(statistics_document(self._control.statistics()))
        if operation == "ServerReady" and not self._control.is_ready():
            return error_answer(503, "the server is loading or draining")
        return _EMPTY

    def _model(self, operation: str, name: str, version: str) -> HttpAnswer:
        if operation == "ModelReady":
            ready = self._control.is_model_ready(name, version)
            return _EMPTY if ready else error_answer(503, "the model is not ready")
        if operation == "ModelStatistics":
            if not name:
                # An empty name means all models to the control plane, but is invalid in a path.
                raise RequestError("the model's name is empty")
            return json_answer(statistics_document(self._control.statistics(name, version)))
        model = self._control.model(name, version)
        return json_answer(
            config_document(model) if operation == "ModelConfig" else metadata_document(model)
        )

    def _repository(
        self,
        operation: str,
        name: Mapping[str, str],
        body: Mapping[str, Any],
        is_active: Callable[[], bool],
    ) -> HttpAnswer:
        if operation == "RepositoryIndex":
            ready = body.get("ready", False)
            if not isinstance(ready, bool):
                raise RequestError("ready: expected a boolean")
            return json_answer([entry_document(e) for e in self._control.index(ready_only=ready)])
        parameters = object_of(body.get("parameters"), "parameters")
        for key, value in parameters.items():
            text_of(key, "a parameter's name")
            if isinstance(value, bool):
                continue
            if isinstance(value, int):
                whole_number(value, repr(key), least=-(2**63))
            else:
                text_of(value, f"parameter {key!r}")
        is_load = operation == "RepositoryModelLoad"
        act = self._control.load if is_load else self._control.unload
        act(name["model"], parameters, is_active)
        return _EMPTY

    def _system_memory(self, operation: str, region: str, request: HttpRequest) -> HttpAnswer:
        if operation.endswith("Status"):
            return json_answer([region_document(found) for found in self._control.regions(region)])
        if operation.endswith("UnregisterAll"):
            self._control.unregister_region()
        elif operation.endswith("Unregister"):
            # An empty name would unregister all regions, and no region has an empty name.
            if region:
                self._control.unregister_region(region)
        else:
            body = read_object(request.body)
            size = whole_number(body.get("byte_size"), "byte_size", most=_MOST_UINT)
            key = text_of(body.get("key"), "key")
            offset = whole_number(body.get("offset", 0), "offset", most=_MOST_UINT)
            self._control.register_region(region, key, offset=offset, byte_size=size)
        return _EMPTY

    def _cuda_memory(self, operation: str, region: str, request: HttpRequest) -> HttpAnswer:
        if operation.endswith("Status"):
            self._control.check_cuda_region(region)
            return json_answer([])
        if operation.endswith("Register"):
            body = read_object(request.body)
            whole_number(body.get("byte_size"), "byte_size", most=_MOST_UINT)
            _check_handle(body.get("raw_handle"))
            whole_number(body.get("device_id"), "device_id")
            self._control.register_cuda_region()
        return _EMPTY

    def _trace(self, operation: str, model: str, request: HttpRequest) -> HttpAnswer:
        changes: dict[str, list[str]] = {}
        for name, value in _changes(operation, request).items():
            values = [] if value is None else value if isinstance(value, list) else [value]
            changes[name] = [text_of(item, f"trace setting {name!r}") for item in values]
        settings = self._control.change_traces(changes, model)
        # As in Triton: a list for the trace level, and a string for any other setting.
        return json_answer(
            {n: [v] if n == "trace_level" else v for n, v in sorted(settings.items())}
        )

    def _logging(self, operation: str, request: HttpRequest) -> HttpAnswer:
        changes = _changes(operation, request)
        for name, value in changes.items():
            what = f"log setting {name!r}"
            if isinstance(value, int) and not isinstance(value, bool):
                whole_number(value, what, most=2**32 - 1)
            elif value is not None and not isinstance(value, bool):
                text_of(value, what)
        return json_answer(dict(sorted(self._control.change_logs(changes).items())))


def _changes(operation: str, request: HttpRequest) -> dict[str, Any]:
    changes = read_object(request.body) if operation.endswith("Set") else {}
    for name in changes:
        text_of(name, "a setting's name")
    return changes


def _check_handle(value: object) -> None:
    text = text_of(object_of(value, "raw_handle").get("b64"), "raw_handle: b64")
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"raw_handle: b64 is no base64: {error}") from error
