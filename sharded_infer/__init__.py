"""Recommendation models: described, published as verified artifacts, opened and scored.

Names are loaded when they are first used, so that a client (`sharded_infer.client`) does not load
torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharded_infer.errors import ShardedInferError
    from sharded_infer.model import Model, open_model
    from sharded_infer.publication import PublishedVersion, publish
    from sharded_infer.repository import Repository
    from sharded_infer.samples.reference import record_reference
    from sharded_infer.spec import (
        DenseSpec,
        GateSpec,
        ModelSpec,
        QuantizationSpec,
        ServingSpec,
        TableSpec,
        TowerSpec,
    )
    from sharded_infer.spec_document import load_spec

_MODULES = {
    "errors": ("ShardedInferError",),
    "model": ("Model", "open_model"),
    "publication": ("PublishedVersion", "publish"),
    "repository": ("Repository",),
    "samples.reference": ("record_reference",),
    "spec": (
        "DenseSpec",
        "GateSpec",
        "ModelSpec",
        "QuantizationSpec",
        "ServingSpec",
        "TableSpec",
        "TowerSpec",
    ),
    "spec_document": ("load_spec",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

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
    "record_reference",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
