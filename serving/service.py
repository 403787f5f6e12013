"""The Open Inference Protocol's RPCs, apart from ModelInfer (`serving/rpc_handlers.py`)."""

import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.description import model_config, model_metadata, model_statistics
from serving.model_store import ModelStore
from serving.refusals import UnavailableError
from serving.snapshot import Snapshot
from serving.status import status_of

EXTENSIONS = ("statistics", "model_configuration", "model_repository", "logging")


class InferenceService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers the protocol from the loaded versions. RPCs that are not here say UNIMPLEMENTED."""

    def __init__(
        self,
        store: ModelStore,
        ready: Callable[[], bool],
        parts: Sequence[object] = (),
        *,
        extensions: Sequence[str] = (),
        max_batch: int,
    ) -> None:
        """Keeps what the RPCs need.

        Args:
            store: the loaded versions.
            ready: whether every model is loaded and the server is not draining.
            parts: more RPCs: their public methods, by name.
            extensions: the protocol's names for what the parts add.
            max_batch: samples of a request.
        """
        for part in parts:
            for name in dir(part):
                if not name.startswith("_"):
                    setattr(self, name, getattr(part, name))
        self._extensions = (*EXTENSIONS, *extensions)
        self._store = store
        self._ready = ready
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
            extensions=self._extensions,
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
        snapshot = self._snapshot(request, context)
        return model_config(snapshot, self._max_batch, self._store.names(request.name))

    def ModelStatistics(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Totals of one model, or of all."""
        one = bool(request.name)
        snapshots = [self._snapshot(request, context)] if one else self._store.snapshots()
        return service_pb2.ModelStatisticsResponse(
            model_stats=[model_statistics(snapshot) for snapshot in snapshots]
        )

    def _snapshot(self, request: Any, context: grpc.ServicerContext) -> Snapshot:
        try:
            return self._store.get(request.name, request.version)
        except Exception as error:
            context.abort(*status_of(error))
            raise  # abort does not return
