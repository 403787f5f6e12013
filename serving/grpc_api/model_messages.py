"""Model descriptions and statistics as the protocol's messages."""

from typing import Any

from tritonclient.grpc import model_config_pb2, service_pb2

from serving.control.model_description import (
    PLATFORM,
    ModelDescription,
    TensorDescription,
    VersionTotals,
)
from serving.metrics.totals import Duration


def metadata_message(model: ModelDescription) -> Any:
    """A `ModelMetadataResponse`; every shape starts with -1 for the batch."""
    return service_pb2.ModelMetadataResponse(
        name=model.name,
        versions=[str(version) for version in model.versions],
        platform=PLATFORM,
        inputs=[_tensor(described) for described in model.inputs],
        outputs=[_tensor(described) for described in model.outputs],
    )


def config_message(model: ModelDescription) -> Any:
    """A `ModelConfigResponse`; shapes omit the batch, and `max_batch_size` limits it."""
    parameter = model_config_pb2.ModelParameter
    return service_pb2.ModelConfigResponse(
        config=model_config_pb2.ModelConfig(
            name=model.name,
            platform=PLATFORM,
            backend=PLATFORM,
            max_batch_size=model.max_batch,
            parameters={
                name: parameter(string_value=value) for name, value in model.parameters.items()
            },
            input=[
                model_config_pb2.ModelInput(
                    name=described.name,
                    data_type=_config_datatype(described),
                    dims=described.shape,
                    optional=described.optional,
                )
                for described in model.inputs
            ],
            output=[
                model_config_pb2.ModelOutput(
                    name=described.name,
                    data_type=_config_datatype(described),
                    dims=described.shape,
                )
                for described in model.outputs
            ],
        )
    )


def statistics_message(version: VersionTotals) -> Any:
    """A `ModelStatistics`."""
    totals = version.totals
    return service_pb2.ModelStatistics(
        name=version.name,
        version=str(version.version),
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


def _tensor(described: TensorDescription) -> Any:
    return service_pb2.ModelMetadataResponse.TensorMetadata(
        name=described.name, datatype=described.datatype, shape=described.batch_shape
    )


def _config_datatype(described: TensorDescription) -> Any:
    return model_config_pb2.DataType.Value(f"TYPE_{described.datatype}")


def _duration(duration: Duration) -> Any:
    return service_pb2.StatisticDuration(count=duration.count, ns=duration.nanoseconds)
