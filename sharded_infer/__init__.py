"""Recommendation models: described, published as verified artifacts, opened and scored."""

from sharded_infer.errors import ShardedInferError
from sharded_infer.model import Model, open_model
from sharded_infer.publish import PublishedVersion, publish
from sharded_infer.repository import Repository
from sharded_infer.spec import (
    DenseSpec,
    GateSpec,
    ModelSpec,
    QuantizationSpec,
    ServingSpec,
    TableSpec,
    TowerSpec,
    load_spec,
)

__all__ = [
    "DenseSpec",
    "GateSpec",
    "Model",
    "ModelSpec",
    "PublishedVersion",
    "QuantizationSpec",
    "Repository",
    "ServingSpec",
    "ShardedInferError",
    "TableSpec",
    "TowerSpec",
    "load_spec",
    "open_model",
    "publish",
]
