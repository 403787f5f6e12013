"""The Open Inference Protocol's RPCs, except ModelInfer (`serving/grpc_api/handlers.py`)."""

from collections.abc import Callable
from functools import wraps
from time import monotonic
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.control.control_plane import ControlPlane
from serving.control.server_settings import Setting
from serving.grpc_api.model_messages import config_message, metadata_message, statistics_message
from serving.grpc_api.status_codes import abort
from serving.status import status_of
from sharded_infer.v1 import predictor_pb2_grpc

# The longest wait of a prepare call without a deadline.
_PREPARE_SECONDS: Final = 1.0

_Rpc = Callable[[Any, Any, grpc.ServicerContext], Any]


def _ending_with_status(answer: _Rpc) -> _Rpc:
    """Turns an RPC's exception into its status."""

    @wraps(answer)
    def rpc(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return answer(self, request, context)
        except Exception as error:
            abort(context, status_of(error))

    return rpc


def _write_setting(setting: Any, value: Setting) -> None:
    if isinstance(value, bool):
        setting.bool_param = value
    elif isinstance(value, int):
        setting.uint32_param = value
    else:
        setting.string_param = value


class InferenceService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Translates messages to and from the control plane. Missing RPCs answer UNIMPLEMENTED."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @_ending_with_status
    def ServerLive(self, request: Any, context: grpc.ServicerContext) -> Any:
        """True if the process answers."""
        return service_pb2.ServerLiveResponse(live=True)

    @_ending_with_status
    def ServerReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        """True if every model is loaded and the server is not draining."""
        return service_pb2.ServerReadyResponse(ready=self._control.is_ready())

    @_ending_with_status
    def ServerMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        """The server's name, version and protocol extensions."""
        server = self._control.server()
        return service_pb2.ServerMetadataResponse(
            name=server.name, version=server.version, extensions=server.extensions
        )

    @_ending_with_status
    def ModelReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        """True if a model, or one version of it, is ready."""
        ready = self._control.is_model_ready(request.name, request.version)
        return service_pb2.ModelReadyResponse(ready=ready)

    @_ending_with_status
    def ModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        """A model's inputs and outputs."""
        return metadata_message(self._control.model(request.name, request.version))

    @_ending_with_status
    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        """A model's configuration."""
        return config_message(self._control.model(request.name, request.version))

    @_ending_with_status
    def ModelStatistics(self, request: Any, context: grpc.ServicerContext) -> Any:
        """The statistics of one model, or of all."""
        found = self._control.statistics(request.name, request.version)
        return service_pb2.ModelStatisticsResponse(
            model_stats=[statistics_message(version) for version in found]
        )

    @_ending_with_status
    def RepositoryIndex(self, request: Any, context: grpc.ServicerContext) -> Any:
        """All known versions, with the reason for each that is not ready."""
        entry_message = service_pb2.RepositoryIndexResponse.ModelIndex
        return service_pb2.RepositoryIndexResponse(
            models=[
                entry_message(
                    name=entry.model,
                    version=str(entry.version) if entry.version else "",
                    state=entry.state,
                    reason=entry.reason,
                )
                for entry in self._control.index(ready_only=request.ready)
            ]
        )

    @_ending_with_status
    def RepositoryModelLoad(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Loads a model; a server that polls its repository only polls it at once."""
        self._control.load(request.model_name, request.parameters, context.is_active)
        return service_pb2.RepositoryModelLoadResponse()

    @_ending_with_status
    def RepositoryModelUnload(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Unloads a model."""
        self._control.unload(request.model_name, request.parameters, context.is_active)
        return service_pb2.RepositoryModelUnloadResponse()

    @_ending_with_status
    def SystemSharedMemoryRegister(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Registers a region under a name."""
        self._control.register_region(
            request.name, request.key, offset=request.offset, byte_size=request.byte_size
        )
        return service_pb2.SystemSharedMemoryRegisterResponse()

    @_ending_with_status
    def SystemSharedMemoryUnregister(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Unregisters one region, or all."""
        self._control.unregister_region(request.name)
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    @_ending_with_status
    def SystemSharedMemoryStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        """One registered region, or all."""
        status = service_pb2.SystemSharedMemoryStatusResponse.RegionStatus
        return service_pb2.SystemSharedMemoryStatusResponse(
            regions={
                region.name: status(
                    name=region.name,
                    key=region.key,
                    offset=region.offset,
                    byte_size=region.byte_size,
                )
                for region in self._control.regions(request.name)
            }
        )

    @_ending_with_status
    def CudaSharedMemoryRegister(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Always refuses: CUDA shared memory is not offered."""
        self._control.register_cuda_region()

    @_ending_with_status
    def CudaSharedMemoryUnregister(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Does nothing, because clients start with this call."""
        return service_pb2.CudaSharedMemoryUnregisterResponse()

    @_ending_with_status
    def CudaSharedMemoryStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answers that no CUDA region is registered."""
        self._control.check_cuda_region(request.name)
        return service_pb2.CudaSharedMemoryStatusResponse()

    @_ending_with_status
    def LogSettings(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Changes log settings, and answers with all of them."""
        changes: dict[str, Setting | None] = {}
        for name, setting in request.settings.items():
            kind = setting.WhichOneof("parameter_choice")
            changes[name] = None if kind is None else getattr(setting, kind)
        response = service_pb2.LogSettingsResponse()
        for name, value in self._control.change_logs(changes).items():
            _write_setting(response.settings[name], value)
        return response

    @_ending_with_status
    def TraceSetting(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answers that requests are not traced; refuses other settings."""
        changes = {name: setting.value for name, setting in request.settings.items()}
        response = service_pb2.TraceSettingResponse()
        for name, value in self._control.change_traces(changes, request.model_name).items():
            response.settings[name].value.append(value)
        return response


class PrepareService(predictor_pb2_grpc.PredictorServicer):
    """Computes users' states; the transport answers Predict."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control

    @_ending_with_status
    def Prepare(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Computes and keeps the state of a request's user."""
        left = context.time_remaining()
        deadline = monotonic() + (_PREPARE_SECONDS if left is None else left)
        return self._control.prepare(request, deadline)
