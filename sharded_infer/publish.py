"""Publishing: trained weights and a tower in, one verified version out."""

import hashlib
import importlib.metadata
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor, nn

from kernels.errors import InputError
from quant.report import ErrorMeter, TableReport
from quant.source import SourceError, WeightSource, check_table, find_table, weights_of
from quant.stream import quantize_rows
from sharded_infer.artifact import Artifact, Progress, no_progress
from sharded_infer.batch import ModelInput
from sharded_infer.errors import SpecError, WeightsError
from sharded_infer.fp32_model import fp32_scores
from sharded_infer.golden import GoldenRequests, generate_samples, save_golden
from sharded_infer.manifest import (
    FORMAT_VERSION,
    GOLDEN_NAME,
    REPORT_NAME,
    TOWER_NAME,
    FileRecord,
    GoldenRecord,
    Manifest,
    OutputRecord,
    PieceRecord,
    TableRecord,
    TowerRecord,
)
from sharded_infer.model import Model, check_golden
from sharded_infer.plan import StoredTable, check_plan, dump_plan
from sharded_infer.planner import make_plan
from sharded_infer.repository import Repository
from sharded_infer.spec import ModelSpec, dump_spec
from sharded_infer.table_file import TableEntry, write_table_file
from sharded_infer.table_layout import lay_out
from sharded_infer.topology import parse_topology
from sharded_infer.tower import export_tower
from sharded_infer.tower_archive import write_program

_HASH_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """What a publish made.

    Attributes:
        path: the version's folder.
        version: its number.
        fp32_bytes: size of the tables' rows as fp32.
        table_bytes: size of the table files.
        max_score_diff: the golden requests' largest difference from the fp32 model.
    """

    path: Path
    version: int
    fp32_bytes: int
    table_bytes: int
    max_score_diff: float


def publish(
    spec: ModelSpec,
    weights: object,
    tower: nn.Module,
    repository: Repository | Path | str,
    *,
    topologies: Sequence[str] = ("cpu:1",),
    samples: ModelInput | None = None,
    progress: Progress = no_progress,
) -> PublishedVersion:
    """Quantizes, plans and publishes one version of a model.

    Args:
        spec: the model.
        weights: a TorchRec `EmbeddingBagCollection`, a dict of `nn.EmbeddingBag` by table name, a
            state dict, or a weight source.
        tower: the dense part; its `forward` takes the dense inputs by name and `embeddings`, fp32
            `[B, spec.embedding_width]`, and returns `[B]` or `[B, K]`, or a dict of them by output.
        repository: where to publish.
        topologies: the layouts to plan for; a server takes the first unless told otherwise.
        samples: golden requests, one jagged batch of all features; None generates some.
        progress: told what is being done, and how far it is.

    Returns:
        The published version.

    Raises:
        SpecError, WeightsError: the spec contradicts itself, the weights or the tower.
        PlanError: the tables do not fit a topology.
        TowerError: the tower cannot be exported.
        GateError: the golden requests differ from the fp32 model by more than the spec allows.
    """
    repository = repository if isinstance(repository, Repository) else Repository(repository)
    if not topologies:
        raise SpecError("topologies: expected at least one, such as cpu:1")
    source, keys = _open_source(spec, weights)
    tables = [StoredTable(t.name, t.rows, t.dim, spec.row_format(t)) for t in spec.tables]
    plans = {name: make_plan(tables, parse_topology(name)) for name in topologies}
    for plan in plans.values():
        check_plan(plan, {table.name: table for table in tables})
    progress("exporting the tower", 0, 1)
    program = export_tower(
        tower,
        dense=spec.dense.inputs,
        embedding_width=spec.embedding_width,
        outputs=spec.tower.outputs,
        precision=spec.tower.precision,
    )
    progress("exporting the tower", 1, 1)
    with repository.staging(spec.name) as staged:
        files: dict[str, FileRecord] = {}
        pieces = lay_out(tables)
        reports = _write_tables(staged, spec, source, keys, pieces, files, progress)
        write_program(program, staged / TOWER_NAME)
        model_input = samples if samples is not None else generate_samples(spec)
        scores = fp32_scores(spec, source, keys, tower, model_input)
        save_golden(staged / GOLDEN_NAME, spec, GoldenRequests(model_input, scores))
        plan_files = {name: f"plans/{_file_name(name)}.json" for name in plans}
        (staged / "plans").mkdir()
        for name, plan in plans.items():
            (staged / plan_files[name]).write_bytes(dump_plan(plan))
        (staged / REPORT_NAME).write_text(
            json.dumps({"tables": [asdict(report) for report in reports]}, indent=1)
        )
        for name in (TOWER_NAME, GOLDEN_NAME, REPORT_NAME, *plan_files.values()):
            files[name] = _record(staged / name)
        outputs = tuple(
            OutputRecord(name, None if scores[name].ndim == 1 else scores[name].shape[1])
            for name in spec.tower.outputs
        )
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            model=spec.name,
            version=1,  # the repository gives the number
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            producer=_producer(),
            spec=dump_spec(spec),
            tables=tuple(
                TableRecord(t.name, t.rows, t.dim, t.row_format, tuple(pieces[t.name]))
                for t in tables
            ),
            tower=TowerRecord(TOWER_NAME, spec.tower.precision, outputs),
            golden=GoldenRecord(GOLDEN_NAME, model_input.batch_size, 0.0, spec.gate.max_score_diff),
            plans=plan_files,
            files=files,
        )
        difference = _gate(Artifact(staged, manifest), progress)
        manifest = replace(manifest, golden=replace(manifest.golden, max_score_diff=difference))
        path = repository.commit(staged, manifest)
    return PublishedVersion(
        path=path,
        version=int(path.name),
        fp32_bytes=sum(report.fp32_bytes for report in reports),
        table_bytes=sum(
            files[name].bytes for name in {p.file for ps in pieces.values() for p in ps}
        ),
        max_score_diff=difference,
    )


def _open_source(spec: ModelSpec, weights: object) -> tuple[WeightSource, dict[str, str]]:
    try:
        source = weights_of(weights)
        keys = {table.name: find_table(source, table.name, table.weights) for table in spec.tables}
        for table in spec.tables:
            check_table(source, table.name, keys[table.name], rows=table.rows, dim=table.dim)
    except SourceError as error:
        raise WeightsError(str(error)) from error
    return source, keys


def _write_tables(
    staged: Path,
    spec: ModelSpec,
    source: WeightSource,
    keys: dict[str, str],
    pieces: dict[str, list[PieceRecord]],
    files: dict[str, FileRecord],
    progress: Progress,
) -> list[TableReport]:
    meters = {t.name: ErrorMeter(t.name, spec.row_format(t), t.dim) for t in spec.tables}
    dims = {table.name: table.dim for table in spec.tables}
    formats = {table.name: spec.row_format(table) for table in spec.tables}
    total = sum(4 * table.rows * table.dim for table in spec.tables)
    done = 0

    def count(read: int) -> None:
        nonlocal done
        done += read
        progress("quantizing", done, total)

    by_file: dict[str, list[tuple[str, PieceRecord]]] = defaultdict(list)
    for table, records in pieces.items():
        for record in records:
            by_file[record.file].append((table, record))
    (staged / "tables").mkdir()
    for file, members in by_file.items():
        entries = [
            TableEntry(record.entry, record.rows, formats[table].row_bytes(dims[table]))
            for table, record in members
        ]

        def chunks(members: list[tuple[str, PieceRecord]] = members) -> Iterator[Tensor]:
            for table, record in members:
                yield from quantize_rows(
                    source,
                    keys[table],
                    formats[table],
                    meters[table],
                    table=table,
                    first_row=record.first_row,
                    last_row=record.first_row + record.rows,
                    on_bytes=count,
                )

        try:
            files[file] = write_table_file(staged / file, entries, chunks())
        except InputError as error:
            raise WeightsError(str(error)) from error
    return [meters[table.name].report() for table in spec.tables]


def _gate(artifact: Artifact, progress: Progress) -> float:
    progress("scoring golden requests", 0, 1)
    difference = check_golden(Model(artifact, artifact.plan()))
    progress("scoring golden requests", 1, 1)
    return difference


def _record(path: Path) -> FileRecord:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_BYTES):
            digest.update(chunk)
    return FileRecord(path.stat().st_size, digest.hexdigest())


def _file_name(topology: str) -> str:
    return topology.replace(":", "-").replace("+", "_")


def _producer() -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    for name in ("sharded-infer", "fbgemm-gpu-cpu", "fbgemm-gpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
