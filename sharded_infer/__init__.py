"""Recommendation models: described, published as verified artifacts, opened and scored.

Names are loaded when they are first used, so that a client (`sharded_infer.client`) does not load
torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharded_infer.errors import ShardedInferError
    from sharded_infer.golden import generate_samples
    from sharded_infer.model import Model, open_model
    from sharded_infer.precision import Precision
    from sharded_infer.publication import PublishedVersion, publish
    from sharded_infer.quality import CalibrationSamples
    from sharded_infer.repository import Repository
    from sharded_infer.samples.calibration import read_calibration
    from sharded_infer.samples.reference import record_reference
    from sharded_infer.samples.statistics import statistics_of
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
    from sharded_infer.torchrec_model import from_torchrec
    from sharded_infer.tower import export_tower
    from sharded_infer.tower_archive import write_program

_MODULES = {
    "errors": ("ShardedInferError",),
    "golden": ("generate_samples",),
    "model": (
        "Model",
        "open_model",
    ),
    "precision": ("Precision",),
    "publication": (
        "PublishedVersion",
        "publish",
    ),
    "quality": ("CalibrationSamples",),
    "repository": ("Repository",),
    "samples.calibration": ("read_calibration",),
    "samples.reference": ("record_reference",),
    "samples.statistics": ("statistics_of",),
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
    "torchrec_model": ("from_torchrec",),
    "tower": ("export_tower",),
    "tower_archive": ("write_program",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "CalibrationSamples",
    "DenseSpec",
    "GateSpec",
    "Model",
    "ModelSpec",
    "Precision",
    "PublishedVersion",
    "QuantizationSpec",
    "Repository",
    "ServingSpec",
    "ShardedInferError",
    "TableSpec",
    "TowerSpec",
    "export_tower",
    "from_torchrec",
    "generate_samples",
    "load_spec",
    "open_model",
    "publish",
    "read_calibration",
    "record_reference",
    "statistics_of",
    "write_program",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
