"""Publishing changed rows as a version that shares all other files with its base.

    link the files of the base
    encode the changed rows in the base's formats; write them as an overlay in front of its tables
    score the golden requests by the whole of it, and compare them with the changed rows as trained
    commit, unless another version came meanwhile

A delta version names all files that it needs, so serving it needs only its base's bytes. Trained
values are known for changed rows only; all others are taken as stored in the base.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from quant.encoder import encoder_name
from quant.report import QuantizationReport
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.golden import GoldenRequests, load_golden, save_golden
from sharded_infer.artifacts.manifest import (
    GOLDEN_NAME,
    MOST_OVERLAYS,
    REPORT_NAME,
    REPORT_PAGE_NAME,
    TOWER_NAME,
    BaseRecord,
    FileRecord,
    Manifest,
    blocks_name,
)
from sharded_infer.artifacts.mapped_id_maps import open_id_maps, open_row_places
from sharded_infer.artifacts.mapped_tables import table_pieces
from sharded_infer.artifacts.provenance import provenance_of
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.deltas.overlays import FOLDER, open_overlays, overlaid, write_overlay
from sharded_infer.engines.golden_check import golden_differences
from sharded_infer.engines.model import Model
from sharded_infer.errors import ArtifactError, InputError, TowerError
from sharded_infer.files.staged_folder import storage_errors
from sharded_infer.importing.changes.changed_rows import Changes, check_changes
from sharded_infer.inputs.finite_check import FiniteCheck
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.placed_ids import RowMap
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.plan import Plan, dump_plan
from sharded_infer.planning.planner import make_plan
from sharded_infer.planning.table_use import table_uses
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.progress import Progress, no_progress
from sharded_infer.publishing.deltas.changed_ids import changed_ids, write_id_maps
from sharded_infer.publishing.deltas.encoded_changes import ChangedSource, encode_changes
from sharded_infer.publishing.deltas.linked_base import link_files
from sharded_infer.publishing.quantization import write_report
from sharded_infer.publishing.version_files import file_record, producer
from sharded_infer.quality.finite_scores import refuse_nonfinite
from sharded_infer.quality.fp32_model import TRAINED, Fp32Model
from sharded_infer.quality.quality_gate import golden_record
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import SigningKey, read_signing_keys
from sharded_infer.repositories.signatures.manifest_signatures import Sealing
from sharded_infer.samples.request import model_input_of
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.spec_file import dump_spec
from sharded_infer.towers.host_products import ProductsOption
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.tower import export_tower

# Digits of an overlay's SHA-256 in its name: chained versions link earlier overlays.
_NAME_DIGITS = 16


@dataclass(frozen=True, slots=True)
class PublishedDelta:
    """A published delta version.

    Attributes:
        path: the version's folder; of a remote repository, the removed staging folder.
        location: the version's folder or URL, for display.
        changed_rows: by table, of changed tables only.
        stored_bytes: of the changed rows.
        written_bytes: of all files that the base does not have.
        max_score_diff: the golden requests' largest difference from the changed rows as trained.
    """

    path: Path
    location: str
    version: int
    base: int
    changed_rows: Mapping[str, int]
    stored_bytes: int
    written_bytes: int
    max_score_diff: float


def publish_delta(
    model: str,
    changes: Changes,
    repository: Repository | Path | str,
    *,
    base: int | None = None,
    tower: nn.Module | None = None,
    samples: object | None = None,
    note: str | None = None,
    run_id: str | None = None,
    source_revision: str | None = None,
    followed: str | None = None,
    sign_keys: Sequence[SigningKey | Path | str] = (),
    progress: Progress = no_progress,
) -> PublishedDelta:
    """Publish changed rows, and optionally a new tower, as one version.

    Args:
        changes: by table: rows as trained or as stored. Rows beyond a table's end are new. Tables
            with an id map take raw ids; unknown ids get new rows.
        repository: a repository, a folder, or a URL such as `s3://bucket/prefix`.
        base: a version that no other delta changes; None: the latest.
        tower: as trained, with the base's inputs and outputs; None: the base's. The golden requests
            calibrate an int8 tower.
        samples: golden requests, as for `publish`; None takes the base's.
        note, run_id, source_revision, sign_keys: as for `publish`.
        followed: name of the last included file of a followed folder.
        progress: called with the current step and its progress.

    Raises:
        NotFoundError: no such model or version.
        InputError: nothing is changed; or as `publish`.
        WeightsError: an unsuitable table, row, format or value; names the table and the row.
        PlanError: new rows do not fit the memory of a plan.
        GateError: golden requests differ by more than the spec allows.
        ArtifactError: another version changes the same base, or came meanwhile; names it.
        TowerError, StorageError: as `publish`.
    """
    repository = repository if isinstance(repository, Repository) else Repository(repository)
    provenance = provenance_of(note, run_id, source_revision)
    sealing = Sealing.by(read_signing_keys(sign_keys))
    number = _checked_base(repository, model, base)
    path = repository.fetch(model, number, progress)
    try:
        before = Artifact(path, repository.manifest(model, number))
        made = _Delta(before, changes, tower, progress)
        with repository.staging(model) as staged, storage_errors(staged):
            complete = made.write(staged, samples, followed)
            complete = replace(complete, provenance=provenance)
            expected = repository.next_version(model)
            _checked_base(repository, model, number)
            folder = repository.commit(
                staged, complete, version=expected, sealing=sealing, progress=progress
            )
    finally:
        repository.release(path)
    known = before.manifest.files
    return PublishedDelta(
        path=folder,
        location=repository.where(model, expected),
        version=expected,
        base=number,
        changed_rows={name: len(layer.ids) for name, layer in made.encoded.layers.items()},
        stored_bytes=made.encoded.stored_bytes,
        written_bytes=sum(
            record.bytes for name, record in complete.files.items() if known.get(name) != record
        ),
        max_score_diff=complete.golden.max_score_diff,
    )


def _checked_base(repository: Repository, model: str, base: int | None) -> int:
    """The base's number; ArtifactError naming another version that changes it."""
    latest = repository.latest(model)
    number = latest if base is None else base
    for later in repository.versions(model):
        if not number < later <= latest:
            continue
        found = repository.manifest(model, later).base
        if found is not None and found.version == number:
            raise ArtifactError(
                f"model {model!r}: version {later} changes version {number} already: its changes "
                f"would be lost; expected changes of version {latest}"
            )
    return number


class _Delta:
    def __init__(
        self, base: Artifact, changes: Changes, tower: nn.Module | None, progress: Progress
    ) -> None:
        self._base, self._tower, self._progress = base, tower, progress
        manifest = base.manifest
        if manifest.sha256 is None:
            raise ArtifactError(
                f"{base.path}: its manifest has no checksum, which a delta names it by: publish "
                "it whole once more"
            )
        if not changes and tower is None:
            raise InputError("changes: expected changed rows of a table, or a tower, got none")
        self._tables = manifest.stored_tables()
        self._ids = changed_ids(base, check_changes(changes, "changes"))
        spec = manifest.model_spec()
        self._places = open_row_places(base)
        self.encoded = encode_changes(spec, self._tables, self._ids.changes, self._places, progress)
        self._spec = self.encoded.spec

    def write(self, staged: Path, samples: object | None, followed: str | None) -> Manifest:
        base = self._base.manifest
        names = set(base.files) - self._replaced_files()
        id_maps = write_id_maps(self._base, self._ids, self._spec, staged)
        names -= {*id_maps, *map(blocks_name, id_maps)}
        linked = link_files(self._base, staged, names)
        written = id_maps | self._write_overlay(staged) | self._write_plans(staged)
        if self._tower is not None:
            written |= self._write_tower(staged, samples)
        if not written:
            raise InputError(
                f"changes: version {base.version} has exactly these rows and ids already"
            )
        overlays = [name for name in written if name.startswith(FOLDER)]
        overlays = [*(name for name in base.overlays or () if name not in overlays), *overlays]
        if len(overlays) > MOST_OVERLAYS:
            raise InputError(
                f"version {base.version} is the last of {MOST_OVERLAYS} deltas of a whole version, "
                "each of which takes a descriptor: compact it first (repo compact)"
            )
        manifest = replace(
            base,
            format_version=2,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            producer=producer(),
            spec=dump_spec(self._spec),
            tables=tuple(
                replace(record, rows=table.rows)
                for record, table in zip(base.tables, self._spec.tables, strict=True)
            ),
            version=base.version + 1,  # the repository gives the number
            files=linked | written,
            imported=None,
            base=BaseRecord(base.version, base.sha256 or "", followed),
            overlays=tuple(overlays) or None,
        )
        return self._judged(staged, manifest, samples)

    def _replaced_files(self) -> set[str]:
        manifest = self._base.manifest
        replaced = {manifest.golden.file, REPORT_NAME, REPORT_PAGE_NAME}
        if self._tower is not None:
            replaced.add(manifest.tower.file)
        return replaced | (set(manifest.plans.values()) if self._grows else set())

    @property
    def _grows(self) -> bool:
        return any(table.rows != self._tables[table.name].rows for table in self._spec.tables)

    def _write_overlay(self, staged: Path) -> dict[str, FileRecord]:
        if not self.encoded.layers:
            return {}
        (staged / FOLDER).mkdir(exist_ok=True)
        path = staged / FOLDER / "new"
        rows = self._rows()
        tables = {name: replace(table, rows=rows[name]) for name, table in self._tables.items()}
        record = write_overlay(path, tables, self.encoded.layers)
        name = f"{FOLDER}/{record.sha256[:_NAME_DIGITS]}.safetensors"
        if (self._base.manifest.overlays or ())[-1:] == (name,):
            path.unlink()
            return {}
        # A change that was reverted and repeated: its file may exist already.
        path.replace(staged / name)
        return {name: record}

    def _rows(self) -> dict[str, int]:
        return {table.name: table.rows for table in self._spec.tables}

    def _write_plans(self, staged: Path) -> dict[str, FileRecord]:
        if not self._grows:
            return {}
        written = {}
        for topology, name in self._base.manifest.plans.items():
            plan = self._grown(self._base.plan(topology))
            (staged / name).parent.mkdir(exist_ok=True)
            (staged / name).write_bytes(dump_plan(plan))
            written[name] = file_record(staged / name)
        return written

    def _grown(self, plan: Plan) -> Plan:
        rows = self._rows()
        shards = tuple(
            replace(shard, last_row=rows[shard.table])
            if shard.last_row == self._tables[shard.table].rows
            else shard
            for shard in plan.shards
        )
        return replace(plan, shards=shards)

    def _write_tower(self, staged: Path, samples: object | None) -> dict[str, FileRecord]:
        spec, tower = self._spec, self._tower
        if tower is None:
            return {}
        self._progress("exporting the tower", 0, 1)
        calibration = None
        if spec.tower.precision is Precision.INT8:
            model_input = self._golden_input(samples)
            model_input = self._mapped(model_input, self._base)
            trained = self._trained(tower)
            [embeddings] = trained.pooled(model_input, [TRAINED])
            calibration = trained.tower_inputs(model_input, embeddings)
        program = export_tower(
            tower,
            dense=spec.dense.inputs,
            embedding_width=spec.embedding_width,
            sequences=spec.tower_sequences,
            outputs=spec.tower.outputs,
            precision=spec.tower.precision,
            calibration=calibration,
            embedding_text=spec.embedding_text,
        )
        write_program(program, staged / TOWER_NAME)
        self._progress("exporting the tower", 1, 1)
        return {TOWER_NAME: file_record(staged / TOWER_NAME)}

    def _golden_input(self, samples: object | None) -> ModelInput:
        if samples is not None:
            found = model_input_of(self._spec, samples)
            FiniteCheck(self._spec).check(found)
            return found
        record = self._base.manifest.golden
        return load_golden(self._base.path / record.file, self._spec).model_input

    def _mapped(self, model_input: ModelInput, artifact: Artifact) -> ModelInput:
        if self._spec.ids_are_rows:
            return model_input
        maps: dict[str, RowMap] = {**open_id_maps(artifact), **self._places}
        return InputPolicy(self._spec, maps).apply(model_input)

    def _trained(self, tower: nn.Module) -> Fp32Model:
        mapped = table_pieces(self._base, TableMemory.MAP)
        pieces = overlaid(mapped, open_overlays(self._base))
        source = ChangedSource(self._tables, pieces, self.encoded)
        return Fp32Model(self._spec, source.weights(), tower)

    def _judged(self, staged: Path, manifest: Manifest, samples: object | None) -> Manifest:
        self._progress("scoring golden requests", 0, 1)
        asked, names = self._golden_input(samples), self._spec.tower.outputs
        trained = self._trained(nn.Identity() if self._tower is None else self._tower)
        mapped = self._mapped(asked, Artifact(staged, manifest))
        [embeddings] = trained.pooled(mapped, [TRAINED])
        scores = None
        if self._tower is not None:
            scores = trained.score(asked, embeddings)
            self._check_widths(scores)
        here = CostModel(
            {use.table.name: use for use in table_uses(self._spec)}, parse_topology("cpu:1")
        )
        plan = make_plan(here).plan
        served = Model(
            Artifact(staged, manifest),
            plan,
            memory=TableMemory.MAP,
            products=ProductsOption.PUBLISHED,
        )
        if scores is None:
            # The base's tower, in its precision: only rows differ from the served model.
            found = served.score(asked, embeddings)
            scores = {n: score.numpy() for n, score in zip(names, found, strict=True)}
        refuse_nonfinite(trained, asked, embeddings, scores)
        save_golden(staged / GOLDEN_NAME, self._spec, GoldenRequests(asked, scores))
        golden = replace(manifest.golden, file=GOLDEN_NAME, samples=asked.batch_size)
        record = golden_record(golden, self._spec.gate, [golden_differences(served)])
        self._progress("scoring golden requests", 1, 1)
        report = QuantizationReport(self._spec.name, encoder_name(), self.encoded.reports, None)
        name = write_report(staged, report)
        files = {name: file_record(staged / name)}
        files[GOLDEN_NAME] = file_record(staged / GOLDEN_NAME)
        return replace(manifest, golden=record, files=manifest.files | files)

    def _check_widths(self, scores: Mapping[str, NDArray[np.float32]]) -> None:
        for output in self._base.manifest.tower.outputs:
            score = scores[output.name]
            width = None if score.ndim == 1 else score.shape[1]
            if width != output.width:
                raise TowerError(
                    f"tower: output {output.name!r}: expected [B{_of(output.width)}] as the base "
                    f"has it, got [B{_of(width)}]"
                )


def _of(width: int | None) -> str:
    return "" if width is None else f", {width}"
