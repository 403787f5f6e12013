"""Recommendation models: described, published as verified artifacts, opened and scored.

Names are loaded on first use, so that a client (`sharded_infer.client`) does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharded_infer.artifacts.golden import generate_samples
    from sharded_infer.engines.model import Model, open_model
    from sharded_infer.errors import ShardedInferError
    from sharded_infer.importing.changes.change_files import open_changes
    from sharded_infer.importing.changes.changed_rows import ChangedRows
    from sharded_infer.importing.changes.compared_weights import changes_between
    from sharded_infer.importing.changes.followed_folder import FollowedFolder
    from sharded_infer.importing.changes.hps_messages import open_hps_messages
    from sharded_infer.importing.changes.tracked_changes import changes_of_tracker
    from sharded_infer.importing.changes.written_files import write_changes
    from sharded_infer.importing.id_maps.id_files import open_id_file
    from sharded_infer.importing.id_maps.keyed_tables import KeyedTables, open_keyed_tables
    from sharded_infer.importing.id_maps.mpzch import MpzchSettings
    from sharded_infer.importing.id_maps.torchrec_maps import id_maps_of, mch_id_map, mpzch_id_map
    from sharded_infer.importing.id_maps.vocabulary import open_vocabulary
    from sharded_infer.importing.modules.from_module import ImportedModule, from_module
    from sharded_infer.importing.torchrec_model import from_torchrec
    from sharded_infer.publishing.deltas.changed_weights import changed_weights
    from sharded_infer.publishing.deltas.compaction import CompactedVersion, compact
    from sharded_infer.publishing.deltas.delta_publication import PublishedDelta, publish_delta
    from sharded_infer.publishing.module_publication import publish
    from sharded_infer.publishing.part_publication import PublishedPart, publish_part
    from sharded_infer.publishing.publication import PublishedVersion
    from sharded_infer.publishing.sampled_ids import (
        mapped_samples,
        sampled_frequencies,
        with_frequencies,
    )
    from sharded_infer.quality.quality import CalibrationSamples
    from sharded_infer.repositories.repository import Repository
    from sharded_infer.samples.calibration import read_calibration
    from sharded_infer.samples.reference import record_reference
    from sharded_infer.samples.statistics import statistics_of
    from sharded_infer.specs.feature_statistics import FeatureStatistics
    from sharded_infer.specs.id_map_spec import IdMapSpec, SharedRows
    from sharded_infer.specs.model_spec import (
        DenseSpec,
        GateSpec,
        ModelSpec,
        OutputGate,
        QuantizationSpec,
        ServingSpec,
        TableSpec,
        TowerSpec,
    )
    from sharded_infer.specs.precision import Precision
    from sharded_infer.specs.release_spec import ReleaseSpec
    from sharded_infer.specs.sequence_input import SequenceInput
    from sharded_infer.specs.sequence_spec import SequenceSpec
    from sharded_infer.specs.spec_file import load_spec
    from sharded_infer.towers.program.archive import write_program
    from sharded_infer.towers.tower import export_tower

_MODULES = {
    "errors": ("ShardedInferError",),
    "artifacts.golden": ("generate_samples",),
    "engines.model": (
        "Model",
        "open_model",
    ),
    "specs.precision": ("Precision",),
    "publishing.deltas.changed_weights": ("changed_weights",),
    "publishing.deltas.compaction": ("CompactedVersion", "compact"),
    "publishing.deltas.delta_publication": ("PublishedDelta", "publish_delta"),
    "publishing.part_publication": (
        "PublishedPart",
        "publish_part",
    ),
    "publishing.module_publication": ("publish",),
    "publishing.publication": ("PublishedVersion",),
    "quality.quality": ("CalibrationSamples",),
    "publishing.sampled_ids": ("mapped_samples", "sampled_frequencies", "with_frequencies"),
    "repositories.repository": ("Repository",),
    "samples.calibration": ("read_calibration",),
    "samples.reference": ("record_reference",),
    "samples.statistics": ("statistics_of",),
    "specs.id_map_spec": ("IdMapSpec", "SharedRows"),
    "specs.feature_statistics": ("FeatureStatistics",),
    "specs.model_spec": (
        "DenseSpec",
        "GateSpec",
        "ModelSpec",
        "OutputGate",
        "QuantizationSpec",
        "ServingSpec",
        "TableSpec",
        "TowerSpec",
    ),
    "specs.release_spec": ("ReleaseSpec",),
    "specs.sequence_input": ("SequenceInput",),
    "specs.sequence_spec": ("SequenceSpec",),
    "specs.spec_file": ("load_spec",),
    "importing.changes.change_files": ("open_changes",),
    "importing.changes.changed_rows": ("ChangedRows",),
    "importing.changes.compared_weights": ("changes_between",),
    "importing.changes.followed_folder": ("FollowedFolder",),
    "importing.changes.hps_messages": ("open_hps_messages",),
    "importing.changes.tracked_changes": ("changes_of_tracker",),
    "importing.changes.written_files": ("write_changes",),
    "importing.id_maps.id_files": ("open_id_file",),
    "importing.id_maps.keyed_tables": ("KeyedTables", "open_keyed_tables"),
    "importing.id_maps.mpzch": ("MpzchSettings",),
    "importing.id_maps.torchrec_maps": ("id_maps_of", "mch_id_map", "mpzch_id_map"),
    "importing.id_maps.vocabulary": ("open_vocabulary",),
    "importing.modules.from_module": ("ImportedModule", "from_module"),
    "importing.torchrec_model": ("from_torchrec",),
    "towers.tower": ("export_tower",),
    "towers.program.archive": ("write_program",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "CalibrationSamples",
    "ChangedRows",
    "CompactedVersion",
    "DenseSpec",
    "FeatureStatistics",
    "FollowedFolder",
    "GateSpec",
    "IdMapSpec",
    "ImportedModule",
    "KeyedTables",
    "Model",
    "ModelSpec",
    "MpzchSettings",
    "OutputGate",
    "Precision",
    "PublishedDelta",
    "PublishedPart",
    "PublishedVersion",
    "QuantizationSpec",
    "ReleaseSpec",
    "Repository",
    "SequenceInput",
    "SequenceSpec",
    "ServingSpec",
    "ShardedInferError",
    "SharedRows",
    "TableSpec",
    "TowerSpec",
    "changed_weights",
    "changes_between",
    "changes_of_tracker",
    "compact",
    "export_tower",
    "from_module",
    "from_torchrec",
    "generate_samples",
    "id_maps_of",
    "load_spec",
    "mapped_samples",
    "mch_id_map",
    "mpzch_id_map",
    "open_changes",
    "open_hps_messages",
    "open_id_file",
    "open_keyed_tables",
    "open_model",
    "open_vocabulary",
    "publish",
    "publish_delta",
    "publish_part",
    "read_calibration",
    "record_reference",
    "sampled_frequencies",
    "statistics_of",
    "with_frequencies",
    "write_changes",
    "write_program",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
