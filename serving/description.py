"""What the protocol says of a model: its metadata, configuration and statistics."""

from collections.abc import Mapping, Sequence
from typing import Any

from tritonclient.grpc import model_config_pb2, service_pb2

from serving.snapshot import Snapshot
from serving.statistics import Duration
from serving.version_policy import NAME_PARAMETER

PLATFORM = "sharded_infer"
_CONFIG_DTYPES = {
    "INT64": model_config_pb2.TYPE_INT64,
    "FP32": model_config_pb2.TYPE_FP32,
}


def _inputs(snapshot: Snapshot) -> list[tuple[str, str, list[int]]]:
    # Shapes without the batch. Companions and the all-at-once form are accepted, but not listed:
    # a load generator sends every input that is. Of integers INT32 is accepted besides.
    spec = snapshot.model.spec
    dense = [(name, "FP32", [width]) for name, width in spec.dense.inputs.items()]
    return [*dense, *((name, "INT64", [-1]) for name in spec.sparse_inputs)]


def _outputs(snapshot: Snapshot) -> list[tuple[str, str, list[int]]]:
    outputs = snapshot.model.artifact.manifest.tower.outputs
    return [(o.name, "FP32", [] if o.width is None else [o.width]) for o in outputs]


def model_metadata(snapshot: Snapshot, versions: Sequence[int]) -> Any:
    """A `ModelMetadataResponse`: every shape leads with -1, the batch.

    Args:
        snapshot: the version that is described.
        versions: those of its model that can be asked for.
    """
    tensor = service_pb2.ModelMetadataResponse.TensorMetadata
    return service_pb2.ModelMetadataResponse(
        name=snapshot.model.name,
        versions=[str(version) for version in versions],
        platform=PLATFORM,
        inputs=[
            tensor(name=name, datatype=datatype, shape=[-1, *shape])
            for name, datatype, shape in _inputs(snapshot)
        ],
        outputs=[
            tensor(name=name, datatype=datatype, shape=[-1, *shape])
            for name, datatype, shape in _outputs(snapshot)
        ],
    )


def model_config(snapshot: Snapshot, max_batch: int, names: Mapping[str, int]) -> Any:
    """A `ModelConfigResponse`: shapes without the batch, whose limit is `max_batch_size`.

    Features are optional, those that the model requires are not.

    Args:
        snapshot: the version that is described.
        max_batch: samples of a request.
        names: the versions that `default` and labels mean; parameters `version.<name>`.
    """
    spec = snapshot.model.spec
    optional = set(spec.sparse_inputs) - spec.required_inputs
    return service_pb2.ModelConfigResponse(
        config=model_config_pb2.ModelConfig(
            name=snapshot.model.name,
            platform=PLATFORM,
            backend=PLATFORM,
            max_batch_size=max_batch,
            parameters={
                NAME_PARAMETER + name: model_config_pb2.ModelParameter(string_value=str(version))
                for name, version in names.items()
            },
            input=[
                model_config_pb2.ModelInput(
                    name=name,
                    data_type=_CONFIG_DTYPES[datatype],
                    dims=shape,
                    optional=name in optional,
                )
                for name, datatype, shape in _inputs(snapshot)
            ],
            output=[
                model_config_pb2.ModelOutput(
                    name=name, data_type=_CONFIG_DTYPES[datatype], dims=shape
                )
                for name, datatype, shape in _outputs(snapshot)
            ],
        )
    )


def model_statistics(snapshot: Snapshot) -> Any:
    """A `ModelStatistics`: totals of all the server's processes since it was started."""
    totals = snapshot.metrics.totals()
    return service_pb2.ModelStatistics(
        name=snapshot.model.name,
        version=str(snapshot.model.version),
        last_inference=totals.last_request_ms,
        inference_count=totals.samples,
        execution_count=totals.executions,
        inference_stats=service_pb2.InferStatistics(
            success=_duration(totals.success),
            fail=_duration(totals.failure),
            queue=_duration(totals.queue),
            compute_input=_duration(totals.decode),
            compute_infer=_duration(totals.infer),
            compute_output=_duration(totals.encode),
        ),
        batch_stats=[
            service_pb2.InferBatchStatistics(
                batch_size=batch.size,
                compute_input=_duration(batch.decode),
                compute_infer=_duration(batch.infer),
                compute_output=_duration(batch.encode),
            )
            for batch in totals.batches
        ],
    )


def _duration(duration: Duration) -> Any:
    return service_pb2.StatisticDuration(count=duration.count, ns=duration.nanoseconds)
