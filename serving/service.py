"""The Open Inference Protocol's RPCs, apart from ModelInfer (`serving/rpc_handlers.py`)."""

import importlib.metadata
from collections.abc import Callable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.description import model_config, model_metadata, model_statistics
from serving.model_store import ModelStore
from serving.refusals import UnavailableError
from serving.snapshot import Snapshot
from serving.status import status_of

EXTENSIONS = ("statistics", "model_configuration", "model_repository")


class InferenceService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers the protocol from the loaded versions. RPCs that are not here say UNIMPLEMENTED."""

    def __init__(
        self,
        store: ModelStore,
        ready: Callable[[], bool],
        look: Callable[[], None],
        *,
        max_batch: int,
    ) -> None:
        """Keeps what the RPCs need.

        Args:
            store: the loaded versions.
            ready: whether every model is loaded and the server is not draining.
            look: makes the server look at its repository at once.
            max_batch: samples of a request.
        """
        self._store = store
        self._ready = ready
        self._look = look
        self._max_batch = max_batch

    def ServerLive(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Whether the process answers."""
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Whether every model is loaded and the server is not draining."""
        return service_pb2.ServerReadyResponse(ready=self._ready())

    def ServerMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        """The server's name, version and protocol extensions."""
        return service_pb2.ServerMetadataResponse(
            name="sharded-infer",
            version=importlib.metadata.version("sharded-infer"),
            extensions=EXTENSIONS,
        )

    def ModelReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Whether a model, or a version of it, answers."""
        try:
            self._store.get(request.name, request.version)
        except UnavailableError:
            return service_pb2.ModelReadyResponse(ready=False)
        except Exception as error:
            context.abort(*status_of(error))
        return service_pb2.ModelReadyResponse(ready=True)

    def ModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        """A model's inputs and outputs."""
        snapshot = self._snapshot(request, context)
        return model_metadata(snapshot, self._store.versions(snapshot.model.name))

    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        """A model's configuration."""
        return model_config(self._snapshot(request, context), self._max_batch)

    def ModelStatistics(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Totals of one model, or of all."""
        one = bool(request.name)
        snapshots = [self._snapshot(request, context)] if one else self._store.snapshots()
        return service_pb2.ModelStatisticsResponse(
            model_stats=[model_statistics(snapshot) for snapshot in snapshots]
        )

    def RepositoryIndex(self, request: Any, context: grpc.ServicerContext) -> Any:
        """All versions that are known, and why those that are not ready are not."""
        index = service_pb2.RepositoryIndexResponse.ModelIndex
        return service_pb2.RepositoryIndexResponse(
            models=[
                index(
                    name=entry.model,
                    version=str(entry.version) if entry.version else "",
                    state=entry.state,
                    reason=entry.reason,
                )
                for entry in self._store.index()
                if entry.state == "READY" or not request.ready
            ]
        )

    def RepositoryModelLoad(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Looks at the repository at once, and tries again what has failed.

        Which versions are served is the server's policy, so nothing else may be asked for. The
        answer comes before anything is loaded: `RepositoryIndex` says what becomes of it.
        """
        if request.model_name not in {entry.model for entry in self._store.index()}:
            message = f"no model {request.model_name!r} is served here"
            context.abort(grpc.StatusCode.NOT_FOUND, message)
        if request.parameters:
            message = f"parameters: expected none, got {', '.join(sorted(request.parameters))}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        self._look()
        return service_pb2.RepositoryModelLoadResponse()

    def _snapshot(self, request: Any, context: grpc.ServicerContext) -> Snapshot:
        try:
            return self._store.get(request.name, request.version)
        except Exception as error:
            context.abort(*status_of(error))
            raise  # abort does not return
