"""The protocol's HTTP operations apart from predicting, each through its RPC.

The RPCs (`serving/service.py`) decide and answer; this turns JSON to their messages and back.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from tritonclient.grpc import service_pb2

from serving.rest.exchange import HttpAnswer, HttpRequest, error_answer, json_answer
from serving.rest.infer_answer import parameters_of
from serving.rest.json_text import object_of, read_object, text_of, whole_number
from serving.rest.rpc_context import Rpcs
from serving.rest.rpc_document import rpc_document
from sharded_infer.errors import RequestError

_MOST_UINT = 2**64 - 1
_EMPTY = HttpAnswer(200, kind="")


class ModelApi:
    """Answers each operation of `routes.ROUTES` but ModelInfer. Any thread may call."""

    def __init__(self, rpcs: Rpcs) -> None:
        """Keeps what answers.

        Args:
            rpcs: the protocol's.
        """
        self._rpcs = rpcs

    def answer(
        self,
        operation: str,
        names: Mapping[str, str],
        request: HttpRequest,
        is_active: Callable[[], bool],
    ) -> HttpAnswer:
        """Answers a request; it may wait, for as long as a model loads.

        Args:
            operation: a route's.
            names: the client's, in the path.
            request: the request.
            is_active: whether the client still waits.

        Raises:
            RequestError: the body is not what the operation expects.
            RpcStatusError: the RPC ended with an error.
        """
        name = {key: text_of(value, f"the path's {key}") for key, value in names.items()}
        if operation.startswith("Model") and "Trace" not in operation:
            return self._model(operation.removesuffix("Version"), name)
        if operation.startswith("Repository"):
            return self._repository(operation, name, read_object(request.body), is_active)
        if "Memory" in operation:
            return self._memory(operation, name.get("region", ""), request)
        if "Trace" in operation:
            return self._trace(operation, name.get("model", ""), request)
        if operation.startswith("Logging"):
            return self._logging(operation, request)
        return self._server(operation)

    def _server(self, operation: str) -> HttpAnswer:
        if operation == "ServerMetadata":
            found = self._rpcs.call(operation, service_pb2.ServerMetadataRequest())
            return json_answer(rpc_document(found, every_field=True))
        if operation == "AllStatistics":
            request = service_pb2.ModelStatisticsRequest()
            return _statistics(self._rpcs.call("ModelStatistics", request))
        if operation == "ServerReady":
            ready = self._rpcs.call(operation, service_pb2.ServerReadyRequest()).ready
            return _EMPTY if ready else error_answer(503, "the server is loading or draining")
        self._rpcs.call(operation, service_pb2.ServerLiveRequest())
        return _EMPTY

    def _model(self, operation: str, name: Mapping[str, str]) -> HttpAnswer:
        request = getattr(service_pb2, f"{operation}Request")(
            name=name["model"], version=name.get("version", "")
        )
        if operation == "ModelStatistics" and not name["model"]:
            # To the RPC no name is all models; in a path it is a model that there is not.
            raise RequestError("the model's name is empty")
        found = self._rpcs.call(operation, request)
        if operation == "ModelReady":
            return _EMPTY if found.ready else error_answer(503, "the model is not ready")
        if operation == "ModelStatistics":
            return _statistics(found)
        if operation == "ModelConfig":
            return json_answer(rpc_document(found.config))
        return json_answer(rpc_document(found, every_field=True))

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
            request = service_pb2.RepositoryIndexRequest(ready=ready)
            models = self._rpcs.call(operation, request).models
            return json_answer([rpc_document(entry, every_field=True) for entry in models])
        request = getattr(service_pb2, f"{operation}Request")(model_name=name["model"])
        for key, value in object_of(body.get("parameters"), "parameters").items():
            parameter = request.parameters[text_of(key, "a parameter's name")]
            if isinstance(value, bool):
                parameter.bool_param = value
            elif isinstance(value, int):
                parameter.int64_param = whole_number(value, repr(key), least=-(2**63))
            else:
                parameter.string_param = text_of(value, f"parameter {key!r}")
        self._rpcs.call(operation, request, is_active)
        return _EMPTY

    def _memory(self, operation: str, region: str, request: HttpRequest) -> HttpAnswer:
        kind = "Cuda" if operation.startswith("Cuda") else "System"
        if operation.endswith("Status"):
            message = getattr(service_pb2, f"{kind}SharedMemoryStatusRequest")(name=region)
            regions = self._rpcs.call(f"{kind}SharedMemoryStatus", message).regions
            return json_answer(
                [rpc_document(regions[key], every_field=True) for key in sorted(regions)]
            )
        if "Unregister" in operation:
            if not region and not operation.endswith("All"):
                return _EMPTY  # no region is called nothing; the RPC would forget all
            message = getattr(service_pb2, f"{kind}SharedMemoryUnregisterRequest")(name=region)
            self._rpcs.call(f"{kind}SharedMemoryUnregister", message)
            return _EMPTY
        body = read_object(request.body)
        size = whole_number(body.get("byte_size"), "byte_size", most=_MOST_UINT)
        if kind == "Cuda":
            message = service_pb2.CudaSharedMemoryRegisterRequest(
                name=region,
                raw_handle=_handle(body.get("raw_handle")),
                device_id=whole_number(body.get("device_id"), "device_id"),
                byte_size=size,
            )
        else:
            message = service_pb2.SystemSharedMemoryRegisterRequest(
                name=region,
                key=text_of(body.get("key"), "key"),
                offset=whole_number(body.get("offset", 0), "offset", most=_MOST_UINT),
                byte_size=size,
            )
        self._rpcs.call(f"{kind}SharedMemoryRegister", message)
        return _EMPTY

    def _trace(self, operation: str, model: str, request: HttpRequest) -> HttpAnswer:
        message = service_pb2.TraceSettingRequest(model_name=model)
        changes = read_object(request.body) if operation.endswith("Set") else {}
        for name, value in changes.items():
            setting = message.settings[text_of(name, "a setting's name")]
            values = [] if value is None else value if isinstance(value, list) else [value]
            setting.value.extend(text_of(item, f"trace setting {name!r}") for item in values)
        found = self._rpcs.call("TraceSetting", message).settings
        settings = {name: list(found[name].value) for name in sorted(found)}
        # As Triton has it: a list of levels, and one text for anything else.
        return json_answer(
            {name: v if name == "trace_level" else v[0] for name, v in settings.items()}
        )

    def _logging(self, operation: str, request: HttpRequest) -> HttpAnswer:
        message = service_pb2.LogSettingsRequest()
        changes = read_object(request.body) if operation.endswith("Set") else {}
        for name, value in changes.items():
            setting = message.settings[text_of(name, "a setting's name")]
            if isinstance(value, bool):
                setting.bool_param = value
            elif isinstance(value, int):
                what = f"log setting {name!r}"
                setting.uint32_param = whole_number(value, what, most=2**32 - 1)
            elif value is not None:
                setting.string_param = text_of(value, f"log setting {name!r}")
        return json_answer(parameters_of(self._rpcs.call("LogSettings", message).settings))


def _statistics(found: Any) -> HttpAnswer:
    return json_answer({"model_stats": [_with_durations(entry) for entry in found.model_stats]})


def _with_durations(entry: Any) -> dict[str, Any]:
    document = rpc_document(entry, every_field=True)
    durations = document.get("inference_stats", {})
    for field in entry.inference_stats.DESCRIPTOR.fields:
        durations.setdefault(field.name, {"count": 0, "ns": 0})
    return {"batch_stats": [], **document, "inference_stats": durations}


def _handle(value: object) -> bytes:
    text = text_of(object_of(value, "raw_handle").get("b64"), "raw_handle: b64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"raw_handle: b64 is no base64: {error}") from error
