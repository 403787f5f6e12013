"""Descriptions, statistics and memory regions as the protocol's JSON."""

from collections.abc import Sequence
from typing import Any

from serving.control.model_description import (
    PLATFORM,
    ModelDescription,
    TensorDescription,
    VersionTotals,
)
from serving.metrics.totals import Duration
from serving.shared_memory.regions import Region
from serving.versions.served_versions import IndexEntry

# There is no response cache, so cache hits and misses are always zero.
_NEVER = Duration(0, 0)


def metadata_document(model: ModelDescription) -> dict[str, Any]:
    """A model's metadata; every shape starts with -1 for the batch."""
    return {
        "name": model.name,
        "versions": [str(version) for version in model.versions],
        "platform": PLATFORM,
        "inputs": [_tensor(described) for described in model.inputs],
        "outputs": [_tensor(described) for described in model.outputs],
    }


def _tensor(described: TensorDescription) -> dict[str, Any]:
    return {
        "name": described.name,
        "datatype": described.datatype,
        "shape": described.batch_shape,
    }


def config_document(model: ModelDescription) -> dict[str, Any]:
    """A model's configuration; shapes omit the batch, and `max_batch_size` limits it."""
    document: dict[str, Any] = {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": model.max_batch,
        "input": [_config_tensor(described) for described in model.inputs],
        "output": [_config_tensor(described) for described in model.outputs],
    }
    if model.parameters:
        values = model.parameters.items()
        document["parameters"] = {name: {"string_value": value} for name, value in values}
    return document


def _config_tensor(described: TensorDescription) -> dict[str, Any]:
    # As in protobuf's JSON, empty and false fields are omitted.
    document: dict[str, Any] = {
        "name": described.name,
        "data_type": f"TYPE_{described.datatype}",
    }
    if described.shape:
        document["dims"] = described.shape
    if described.optional:
        document["optional"] = True
    return document


def entry_document(entry: IndexEntry) -> dict[str, str]:
    """An entry of the repository index."""
    return {
        "name": entry.model,
        "version": str(entry.version) if entry.version else "",
        "state": entry.state,
        "reason": entry.reason,
    }


def statistics_document(versions: Sequence[VersionTotals]) -> dict[str, Any]:
    """Statistics of some versions."""
    return {"model_stats": [_totals(version) for version in versions]}


def _totals(version: VersionTotals) -> dict[str, Any]:
    totals = version.totals
    return {
        "batch_stats": [
            {
                "batch_size": batch.size,
                "compute_input": _duration(batch.decode),
                "compute_infer": _duration(batch.infer),
                "compute_output": _duration(batch.encode),
            }
            for batch in totals.batches
        ],
        "name": version.name,
        "version": str(version.version),
        "last_inference": totals.last_request_ms,
        "inference_count": totals.samples,
        "execution_count": totals.executions,
        "inference_stats": {
            "success": _duration(totals.success),
            "fail": _duration(totals.failure),
            "queue": _duration(totals.queue),
            "compute_input": _duration(totals.decode),
            "compute_infer": _duration(totals.infer),
            "compute_output": _duration(totals.encode),
            "cache_hit": _duration(_NEVER),
            "cache_miss": _duration(_NEVER),
        },
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.nanoseconds}


def region_document(region: Region) -> dict[str, Any]:
    """A registered region of shared memory."""
    return {
        "name": region.name,
        "key": region.key,
        "offset": region.offset,
        "byte_size": region.byte_size,
    }
