"""The Open Inference Protocol's RPCs."""

import importlib.metadata
import threading
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.codec import WireTensor, decode, encode
from serving.description import model_config, model_metadata, model_statistics
from serving.metrics import Metrics
from serving.model_store import ModelStore, Snapshot
from serving.status import DeadlineError, UnavailableError, status_of
from sharded_infer.batch import ModelInput
from sharded_infer.errors import RequestError
from sharded_infer.executor import Execution, run_inline

EXTENSIONS = ("statistics", "model_configuration", "model_repository")
# Where typed contents are, by datatype.
_CONTENTS = {"INT64": "int64_contents", "INT32": "int_contents", "FP32": "fp32_contents"}


class InferenceService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers the protocol from the loaded versions. RPCs that are not here say UNIMPLEMENTED."""

    def __init__(self, store: ModelStore, metrics: Metrics, *, max_batch: int) -> None:
        """Keeps what the RPCs need.

        Args:
            store: the loaded versions.
            metrics: the server's.
            max_batch: samples of a request.
        """
        self._store = store
        self._metrics = metrics
        self._max_batch = max_batch
        self.ready = threading.Event()

    def ServerLive(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Whether the process answers."""
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Whether every model is loaded and the server is not draining."""
        return service_pb2.ServerReadyResponse(ready=self.ready.is_set())

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
        return model_metadata(self._snapshot(request, context))

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
        """Versions that are loaded, loading, or failed to load, and why."""
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

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Scores one request."""
        started = perf_counter()
        snapshot: Snapshot | None = None
        with self._metrics.in_flight.track_inprogress():
            try:
                snapshot = self._store.get(request.model_name, request.model_version)
                return _answer(snapshot, request, context, started)
            except Exception as error:
                code, message = status_of(error)
                self._count_failure(snapshot, code, perf_counter() - started)
                context.abort(code, message)

    def _snapshot(self, request: Any, context: grpc.ServicerContext) -> Snapshot:
        try:
            return self._store.get(request.name, request.version)
        except Exception as error:
            context.abort(*status_of(error))
            raise  # abort does not return

    def _count_failure(
        self, snapshot: Snapshot | None, code: grpc.StatusCode, seconds: float
    ) -> None:
        # A client's wrong names must not become labels without bound.
        model, version = "unknown", ""
        if snapshot is not None:
            model, version = snapshot.model.name, str(snapshot.model.version)
            snapshot.statistics.add_failure(seconds)
        self._metrics.requests.labels(model, version, code.name).inc()


def _answer(snapshot: Snapshot, request: Any, context: grpc.ServicerContext, started: float) -> Any:
    requested = _requested_outputs(snapshot, request)
    model_input = decode(_wire_tensors(request), snapshot.reader)
    decoded = perf_counter()
    remaining = context.time_remaining()
    if remaining is not None and remaining <= 0:
        raise DeadlineError("the request's deadline had passed before its lookups began")
    execution = run_inline(snapshot.model, model_input)
    executed = perf_counter()
    response = _response(snapshot, request, requested, execution)
    finished = perf_counter()
    _count_success(snapshot, model_input, execution, (started, decoded, executed, finished))
    return response


def _requested_outputs(snapshot: Snapshot, request: Any) -> Sequence[int]:
    names = snapshot.model.spec.tower.outputs
    for output in request.outputs:
        if output.name not in names:
            raise RequestError(
                f"output {output.name!r} is not one of the model's: {', '.join(names)}"
            )
        if "shared_memory_region" in output.parameters:
            raise RequestError(f"output {output.name!r}: shared memory is not offered here")
    wanted = {output.name for output in request.outputs}
    return [i for i, name in enumerate(names) if not wanted or name in wanted]


def _wire_tensors(request: Any) -> Iterator[WireTensor]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(
            f"raw_input_contents: expected one for each of {len(request.inputs)} inputs, "
            f"got {len(raw)}"
        )
    for index, tensor in enumerate(request.inputs):
        if "shared_memory_region" in tensor.parameters:
            raise RequestError(f"input {tensor.name!r}: shared memory is not offered here")
        if raw:
            data = raw[index]
        else:
            # An unknown datatype is refused by the codec, whatever its contents.
            data = getattr(tensor.contents, _CONTENTS.get(tensor.datatype, "int64_contents"))
        yield WireTensor(tensor.name, tensor.datatype, tensor.shape, data)


def _response(
    snapshot: Snapshot, request: Any, requested: Sequence[int], execution: Execution
) -> Any:
    names = snapshot.model.spec.tower.outputs
    tensor = service_pb2.ModelInferResponse.InferOutputTensor
    return service_pb2.ModelInferResponse(
        model_name=snapshot.model.name,
        model_version=str(snapshot.model.version),
        id=request.id,
        outputs=[
            tensor(name=names[i], datatype="FP32", shape=execution.scores[i].shape)
            for i in requested
        ],
        raw_output_contents=[encode(execution.scores[i]) for i in requested],
    )


def _count_success(
    snapshot: Snapshot,
    model_input: ModelInput,
    execution: Execution,
    times: tuple[float, float, float, float],
) -> None:
    started, decoded, executed, finished = times
    metrics = snapshot.metrics
    metrics.ok.inc()
    metrics.samples.inc(model_input.batch_size)
    metrics.request_seconds.observe(finished - started)
    metrics.phase_seconds["decode"].observe(decoded - started)
    metrics.phase_seconds["lookup"].observe(execution.lookup_seconds)
    metrics.phase_seconds["tower"].observe(execution.tower_seconds)
    metrics.phase_seconds["encode"].observe(finished - executed)
    if execution.ids_outside:
        metrics.ids_out_of_range.inc(execution.ids_outside)
    snapshot.statistics.add_success(
        samples=model_input.batch_size,
        decode=decoded - started,
        infer=executed - decoded,
        encode=finished - executed,
        whole=finished - started,
    )
