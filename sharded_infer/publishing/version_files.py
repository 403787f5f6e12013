"""The files of a version beside its tables and reports."""

import hashlib
import importlib.metadata
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch

from sharded_infer.artifacts.golden import GoldenRequests, save_golden
from sharded_infer.artifacts.manifest import (
    GOLDEN_NAME,
    TOWER_NAME,
    FileRecord,
    GoldenRecord,
    Manifest,
    OutputRecord,
    TowerRecord,
    has_format_2,
)
from sharded_infer.planning.plan import dump_plan
from sharded_infer.publishing.prepared_inputs import PreparedInputs
from sharded_infer.publishing.quantization import table_records
from sharded_infer.publishing.table_writer import WrittenTables
from sharded_infer.publishing.written_id_maps import WrittenIdMaps
from sharded_infer.specs.spec_file import dump_spec
from sharded_infer.towers.program.archive import write_program


def write_rest(
    staged: Path,
    made_of: PreparedInputs,
    tables: WrittenTables,
    golden: GoldenRequests,
    id_maps: WrittenIdMaps,
) -> Manifest:
    """Write all files but tables, id maps (already in `staged`) and reports; begin the manifest."""
    spec = made_of.spec
    write_program(made_of.program, staged / TOWER_NAME)
    scores = golden.scores
    save_golden(staged / GOLDEN_NAME, spec, golden)
    plan_files = {name: f"plans/{_file_name(name)}.json" for name in made_of.planned.plans}
    (staged / "plans").mkdir()
    for name, plan in made_of.planned.plans.items():
        (staged / plan_files[name]).write_bytes(dump_plan(plan))
    written = (TOWER_NAME, GOLDEN_NAME, *plan_files.values())
    outputs = tuple(
        OutputRecord(name, None if scores[name].ndim == 1 else scores[name].shape[1])
        for name in spec.tower.outputs
    )
    return Manifest(
        format_version=2 if has_format_2(spec) else 1,
        model=spec.name,
        version=1,  # the repository gives the number
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        producer=producer(),
        spec=dump_spec(spec),
        tables=table_records(made_of.formats, tables),
        tower=TowerRecord(TOWER_NAME, spec.tower.precision, outputs),
        golden=GoldenRecord(
            GOLDEN_NAME, golden.model_input.batch_size, 0.0, spec.gate.max_score_diff
        ),
        plans=plan_files,
        files=tables.files
        | id_maps.records
        | {name: file_record(staged / name) for name in written},
        id_maps=id_maps.files or None,
        row_places=id_maps.place_files or None,
    )


def file_record(path: Path) -> FileRecord:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return FileRecord(path.stat().st_size, digest.hexdigest())


def _file_name(topology: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", topology)


def producer() -> dict[str, str]:
    """Releases of the packages that determine a version's bytes."""
    versions = {"torch": str(torch.__version__)}
    for name in ("sharded-infer", "fbgemm-gpu-cpu", "fbgemm-gpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
