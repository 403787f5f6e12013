"""Publishing: trained weights and a tower in, one verified version out."""

import hashlib
import importlib.metadata
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn

from quant.report import QuantizationReport, import_text
from sharded_infer.artifact import Artifact
from sharded_infer.batch import ModelInput
from sharded_infer.errors import GateError, SpecError
from sharded_infer.finite_scores import check_finite_scores
from sharded_infer.fp32_model import TRAINED, Fp32Model, fp32_scores
from sharded_infer.gate import blame, check_labels, check_quality, golden_record
from sharded_infer.golden import (
    DEFAULT_SAMPLES,
    GoldenRequests,
    generate_samples,
    load_golden,
    save_golden,
)
from sharded_infer.import_check import check_import
from sharded_infer.ingredients import TOWER_SAMPLES, Ingredients, gather_ingredients
from sharded_infer.load_model import DEFAULT_BATCH, LoadModel
from sharded_infer.manifest import (
    FORMAT_VERSION,
    GOLDEN_NAME,
    TOWER_NAME,
    FileRecord,
    GoldenRecord,
    Manifest,
    OutputRecord,
    TowerRecord,
)
from sharded_infer.model import Model
from sharded_infer.model_check import golden_differences
from sharded_infer.named_topology import parse_topology
from sharded_infer.plan import dump_plan
from sharded_infer.planner import make_plan
from sharded_infer.precision import Precision
from sharded_infer.progress import Progress, no_progress
from sharded_infer.provenance import provenance_of
from sharded_infer.quality import (
    table_contributions,
)
from sharded_infer.quantize import (
    calibrate,
    published_mix,
    quantization_report,
    table_records,
    take_over,
    write_report,
)
from sharded_infer.repository import Repository
from sharded_infer.samples.calibration import read_calibration
from sharded_infer.samples.request import model_input_of
from sharded_infer.score_difference import ScoreDifference, largest_difference
from sharded_infer.spec import ModelSpec
from sharded_infer.spec_document import dump_spec
from sharded_infer.staging import storage_errors
from sharded_infer.statistics import FeatureStatistics
from sharded_infer.table_writer import WrittenTables, write_tables
from sharded_infer.tower import Tower
from sharded_infer.tower_archive import write_program

_FP16_END = torch.finfo(torch.float16).max


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """What a publish made.

    Attributes:
        path: the version's folder; of a remote repository, where it was staged, and gone.
        location: the version's folder or URL, as people write it.
        version: its number.
        fp32_bytes: size of the tables' rows as fp32.
        table_bytes: size of the table files.
        max_score_diff: the golden requests' largest difference from the fp32 model.
        compared: in one line, what the import was compared with, or that it was not.
        report: what quantization did.
    """

    path: Path
    location: str
    version: int
    fp32_bytes: int
    table_bytes: int
    max_score_diff: float
    compared: str
    report: QuantizationReport = field(repr=False)


def publish(
    spec: ModelSpec,
    weights: object,
    tower: nn.Module,
    repository: Repository | Path | str,
    *,
    topologies: Sequence[str] = ("cpu:1",),
    samples: object | None = None,
    calibration: object | None = None,
    statistics: Mapping[str, FeatureStatistics] | None = None,
    batch: int = DEFAULT_BATCH,
    note: str | None = None,
    run_id: str | None = None,
    source_revision: str | None = None,
    progress: Progress = no_progress,
) -> PublishedVersion:
    """Quantizes, plans and publishes one version of a model.

    Args:
        spec: the model; poolings and features that it leaves out are taken from the modules.
        weights: a TorchRec `EmbeddingBagCollection`, a dict of `nn.EmbeddingBag` by table name, a
            state dict, or a weight source. Modules are also called on the samples, and what they
            return compared with what was read of them (`sharded_infer/import_check.py`).
        tower: the dense part; its `forward` takes the dense inputs by name and `embeddings`, fp32
            `[B, spec.embedding_width]`, and returns `[B]` or `[B, K]`, or a dict of them by output.
        repository: where to publish: a folder, or a URL such as `s3://bucket/prefix`.
        topologies: the layouts to plan for; a server takes the first unless told otherwise.
        samples: golden requests: a DataFrame, a mapping of arrays by name, a list of samples, or
            a `ModelInput` of one jagged batch; None takes the first calibration samples, or
            generates some.
        calibration: samples that the version's scores are compared on, with the fp32 model's and
            those of other formats; the report has the result, and the gate reads it. As
            `read_calibration` takes them: a DataFrame with a column `label`, a file, and others.
            An int8 tower's integers are chosen on the first 1024, or on `samples` where there are
            none.
            Recorded scores of the trained model among them are compared with the fp32 model's.
        statistics: how features are used, by name, for the planner and for budgets; the spec's own
            where not given.
        batch: samples of the batch that is planned for.
        note: what is to be said of the version, kept with it; up to 1000 printable characters.
        run_id: the training run, as a tracker names it; up to 200.
        source_revision: of the code that trained it, such as a commit; up to 200.
        progress: told what is being done, and how far it is.

    Returns:
        The published version.

    Raises:
        InputError: the note, run or revision is empty, too long or not printable.
        SpecError, WeightsError: the spec contradicts itself, the weights or the tower, sets a
            budget that no choice of formats meets, or an int8 tower, and there are no samples.
        PlanError: the tables do not fit a topology.
        TowerError: the tower cannot be exported, or makes NaN or infinity of golden requests.
        GateError: golden requests or calibration samples differ from the fp32 model by more than
            the spec allows; says by how much, and which tables contribute most. Or the fp32 model
            differs from the trained modules or from recorded scores; names the first feature and
            table, or the output.
        StorageError: the disk is full or cannot be written, or a store cannot be reached.
    """
    repository = repository if isinstance(repository, Repository) else Repository(repository)
    provenance = provenance_of(note, run_id, source_revision)
    spec, source = take_over(spec, weights)
    given = None if samples is None else model_input_of(spec, samples)
    calibrating = None if calibration is None else read_calibration(spec, calibration)
    check_labels(spec.gate, {} if calibrating is None else calibrating.labels)
    measured_on = given if calibrating is None else calibrating.model_input
    if spec.tower.precision is Precision.INT8 and measured_on is None:
        raise SpecError(
            "tower.precision int8: needs samples of real requests to choose its integers from "
            "(calibration samples), none were given"
        )
    ingredients = gather_ingredients(
        spec,
        source,
        tower,
        repository=repository,
        topologies=topologies,
        statistics=statistics,
        batch=batch,
        samples=measured_on,
        progress=progress,
    )
    if given is None and calibrating is not None:
        first = min(DEFAULT_SAMPLES, calibrating.model_input.batch_size)
        golden_input, other_input = calibrating.model_input.samples(0, first), None
    else:
        golden_input = other_input = given if given is not None else generate_samples(spec)
    trained = Fp32Model(ingredients.spec, ingredients.formats.weights, tower)
    imported = check_import(trained, source, other_input, calibrating, progress)
    with repository.staging(spec.name) as staged, storage_errors(staged):
        check_finite_scores(trained, golden_input)
        tables = write_tables(staged, ingredients.formats, progress)
        manifest = _write_rest(staged, ingredients, tables, golden_input)
        progress("scoring golden requests", 0, 1)
        # Whatever is planned for, the gate runs here.
        here = LoadModel(ingredients.uses, parse_topology("cpu:1"))
        served = Model(Artifact(staged, manifest), make_plan(here).plan)
        judged = _judged(served)
        golden = golden_record(
            manifest.golden, spec.gate, [_check_golden(one, ingredients) for one in judged]
        )
        progress("scoring golden requests", 1, 1)
        report = replace(quantization_report(ingredients.formats, tables), imported=imported)
        if calibrating is not None:
            measured = calibrate(ingredients.formats, tower, calibrating, judged[0].run, progress)
            try:
                check_quality(spec.gate, measured, spec.name)
            except GateError as error:
                raise GateError(
                    f"{error}{_tower_blame(judged[0], ingredients, calibrating.model_input)}"
                ) from error
            report = replace(report, calibration=measured)
        files = manifest.files | {n: _record(staged / n) for n in write_report(staged, report)}
        complete = replace(
            manifest, golden=golden, files=files, imported=imported, provenance=provenance
        )
        path = repository.commit(staged, complete, progress=progress)
    return PublishedVersion(
        path=path,
        location=repository.where(spec.name, int(path.name)),
        version=int(path.name),
        fp32_bytes=sum(report.fp32_bytes for report in tables.reports),
        table_bytes=sum(record.bytes for record in tables.files.values()),
        max_score_diff=golden.max_score_diff,
        compared=import_text(imported),
        report=report,
    )


def _judged(served: Model) -> list[Model]:
    """The version in every way that it will be computed, the least exact first."""
    record = served.artifact.manifest.tower
    if record.precision is not Precision.TF32:
        return [served]
    tower = Tower.load(
        served.artifact.path / record.file,
        dense=served.spec.dense.inputs,
        embedding_width=served.spec.embedding_width,
        outputs=served.spec.tower.outputs,
        tf32=True,
    )
    return [served.with_tower(tower), served]


def _check_golden(served: Model, made_of: Ingredients) -> dict[str, ScoreDifference]:
    try:
        return golden_differences(served)
    except GateError as error:
        golden = load_golden(served.artifact.path / GOLDEN_NAME, made_of.spec)
        model = Fp32Model(made_of.spec, made_of.formats.weights, made_of.tower)
        published = published_mix(made_of.formats)
        found = table_contributions(model, published, golden.model_input)
        tower = _tower_blame(served, made_of, golden.model_input)
        raise GateError(f"{error}{blame(found)}{tower}") from error


def _tower_blame(served: Model, made_of: Ingredients, model_input: ModelInput) -> str:
    """The end of a sentence that says what the tower's precision does, with rows as trained."""
    precision = made_of.spec.tower.precision
    if precision is Precision.FP32:
        return ""
    model = Fp32Model(made_of.spec, made_of.formats.weights, made_of.tower)
    first = model_input.samples(0, min(TOWER_SAMPLES, model_input.batch_size))
    [embeddings] = model.pooled(first, [TRAINED])
    scores = served.score(first, embeddings)
    got = {n: s.numpy() for n, s in zip(made_of.spec.tower.outputs, scores, strict=True)}
    difference = largest_difference(model.score(first, embeddings), got)
    said = f"; the {precision} tower by itself: largest {difference:.2g}"
    if precision is Precision.FP16 and not math.isfinite(difference):
        said += f" (products beyond {_FP16_END:g} are infinite in fp16, not in bf16 and tf32)"
    return said


def _write_rest(
    staged: Path, made_of: Ingredients, tables: WrittenTables, model_input: ModelInput
) -> Manifest:
    spec = made_of.spec
    write_program(made_of.program, staged / TOWER_NAME)
    scores = fp32_scores(spec, made_of.formats.weights, made_of.tower, model_input)
    save_golden(staged / GOLDEN_NAME, spec, GoldenRequests(model_input, scores))
    plan_files = {name: f"plans/{_file_name(name)}.json" for name in made_of.plans}
    (staged / "plans").mkdir()
    for name, plan in made_of.plans.items():
        (staged / plan_files[name]).write_bytes(dump_plan(plan))
    written = (TOWER_NAME, GOLDEN_NAME, *plan_files.values())
    outputs = tuple(
        OutputRecord(name, None if scores[name].ndim == 1 else scores[name].shape[1])
        for name in spec.tower.outputs
    )
    return Manifest(
        format_version=FORMAT_VERSION,
        model=spec.name,
        version=1,  # the repository gives the number
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        producer=_producer(),
        spec=dump_spec(spec),
        tables=table_records(made_of.formats, tables),
        tower=TowerRecord(TOWER_NAME, spec.tower.precision, outputs),
        golden=GoldenRecord(GOLDEN_NAME, model_input.batch_size, 0.0, spec.gate.max_score_diff),
        plans=plan_files,
        files=tables.files | {name: _record(staged / name) for name in written},
    )


def _record(path: Path) -> FileRecord:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return FileRecord(path.stat().st_size, digest.hexdigest())


def _file_name(topology: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", topology)


def _producer() -> dict[str, str]:
    versions = {"torch": str(torch.__version__)}
    for name in ("sharded-infer", "fbgemm-gpu-cpu", "fbgemm-gpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
