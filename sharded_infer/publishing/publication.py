"""Publishing: trained weights and a tower in, one verified version out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from quant.report import QuantizationReport, import_text
from quant.sources.checkpoint import LiveSource
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.golden import DEFAULT_SAMPLES, GoldenRequests
from sharded_infer.artifacts.provenance import provenance_of
from sharded_infer.engines.golden_check import (
    check_independence,
    check_requests,
    golden_differences,
)
from sharded_infer.engines.model import Model
from sharded_infer.engines.zero_padding import ZeroPadding
from sharded_infer.errors import GateError, SpecError
from sharded_infer.files.staged_folder import storage_errors
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.importing.import_check import check_import
from sharded_infer.inputs.finite_check import FiniteCheck
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.planning.cost_model import DEFAULT_BATCH, CostModel
from sharded_infer.planning.planner import make_plan
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.progress import Progress, no_progress
from sharded_infer.publishing.part_join import find_parts, join_tables, remove_parts
from sharded_infer.publishing.prepared_inputs import TOWER_SAMPLES, PreparedInputs, prepare_inputs
from sharded_infer.publishing.quantization import (
    calibrate,
    published_mix,
    quantization_report,
    take_over,
    write_report,
)
from sharded_infer.publishing.rows.planned_rows import planned_rows
from sharded_infer.publishing.rows.row_order import Frequencies, row_order
from sharded_infer.publishing.table_writer import write_tables
from sharded_infer.publishing.version_files import file_record, write_rest
from sharded_infer.publishing.written_id_maps import with_id_maps, written_id_maps
from sharded_infer.quality.contributions import table_contributions
from sharded_infer.quality.finite_scores import check_finite_scores
from sharded_infer.quality.fp32_model import TRAINED, Fp32Model
from sharded_infer.quality.quality_gate import blame, check_labels, check_quality, golden_record
from sharded_infer.quality.score_difference import ScoreDifference, largest_difference
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import SigningKey, read_signing_keys
from sharded_infer.repositories.signatures.manifest_signatures import Sealing
from sharded_infer.samples.calibration import read_calibration
from sharded_infer.samples.request import model_input_of
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.order_rows import OrderRows
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.host_products import ProductsOption
from sharded_infer.towers.tower import Tower

_FP16_END = torch.finfo(torch.float16).max


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A published version.

    Attributes:
        path: the version's folder; of a remote repository, the removed staging folder.
        location: the version's folder or URL, for display.
        max_score_diff: the golden requests' largest difference from the fp32 model.
        compared: one line on the reference of the import check, or that there was none.
        planning_seconds: taken by the plans for all topologies.
    """

    path: Path
    location: str
    version: int
    fp32_bytes: int
    table_bytes: int
    max_score_diff: float
    compared: str
    planning_seconds: float
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
    id_maps: Mapping[str, IdMapSource] | None = None,
    order_rows: str = OrderRows.AS_TRAINED,
    frequencies: Mapping[str, Frequencies] | None = None,
    batch: int = DEFAULT_BATCH,
    parts: int | None = None,
    note: str | None = None,
    run_id: str | None = None,
    source_revision: str | None = None,
    sign_keys: Sequence[SigningKey | Path | str] = (),
    progress: Progress = no_progress,
) -> PublishedVersion:
    """Quantize, plan and publish one version of a model.

    Args:
        spec: missing poolings and features are taken from the modules.
        weights: a TorchRec `EmbeddingBagCollection`, a dict of `nn.EmbeddingBag` by table name, a
            state dict, or a weight source. Modules are also called on the samples, to check the
            imported weights (`sharded_infer/importing/import_check.py`).
        tower: its `forward` takes the dense inputs by name and `embeddings`, fp32 `[B,
            spec.embedding_width]`, and returns `[B]` or `[B, K]`, or a dict of them by output.
        repository: a repository, a folder, or a URL such as `s3://bucket/prefix`.
        topologies: the layouts to plan for; a server takes the first by default.
        samples: golden requests: a DataFrame, a mapping of arrays by name, a list of samples, or a
            `ModelInput` of one jagged batch. None takes the first calibration samples, those of
            `from_module`, or generates some.
        calibration: samples, as in `read_calibration`, on which the report and the gate compare the
            version with the fp32 model and with other formats. Recorded scores of the trained model
            are compared with the fp32 model's. The first 1024 (without any, `samples`) calibrate an
            int8 tower.
        statistics: use of features by name, for the planner and for budgets; None: the spec's own.
        id_maps: raw ids and their rows, by table with raw ids in requests; samples then have raw
            ids too.
        order_rows: "frequency" puts the most used rows first where use is known
            (`sharded_infer/publishing/rows/row_order.py`).
        frequencies: use counts of rows, `[rows]`, by table without an id map, as from
            `sampled_frequencies`.
        batch: samples of a batch, for the planner.
        parts: join this many parts from `publish_part`, instead of encoding the tables.
        note: kept with the version; up to 1000 printable characters.
        run_id: of the training run, in its tracker; up to 200 characters.
        source_revision: of the training code, such as a commit; up to 200 characters.
        sign_keys: ed25519 private keys, or PEM files of them; each signs the version.
        progress: called with the current step and its progress.

    Raises:
        InputError: an empty, too long or unprintable note, run or revision; or rows cannot be
            ordered.
        SpecError, WeightsError: the spec is inconsistent with itself, the weights, the id maps or
            the tower; no choice of formats meets its budget; or an int8 tower lacks samples.
        RequestError: a sample has an unknown id that its id map refuses, or a number that is not
            finite.
        PlanError: the tables do not fit a topology.
        TowerError: the tower cannot be exported, or returns NaN or infinity for golden requests.
        GateError: golden or calibration scores differ from the fp32 model's by more than the spec
            allows; gives the difference and the tables that contribute most. Or the fp32 model
            differs from the trained modules or recorded scores; names the first feature and table,
            or the output.
        StorageError: the disk is full or unwritable, or a store is unreachable.
        NotFoundError, ArtifactError: a part is missing, of another origin, or damaged; names it.
    """
    repository = repository if isinstance(repository, Repository) else Repository(repository)
    provenance = provenance_of(note, run_id, source_revision)
    keys = read_signing_keys(sign_keys)
    spec, source = take_over(spec, weights)
    if samples is None and calibration is None and isinstance(source, LiveSource):
        calibration = source.samples
    spec, sources = with_id_maps(spec, id_maps or {}), id_maps or {}
    given = None if samples is None else model_input_of(spec, samples)
    if given is not None:
        FiniteCheck(spec).check(given)
    calibrating = None if calibration is None else read_calibration(spec, calibration)
    order, planned = planned_rows(
        row_order(order_rows, spec, source, sources, statistics, frequencies),
        repository,
        topologies=topologies,
        batch=batch,
        progress=progress,
    )
    spec = order.spec
    order.check_samples(given)
    order.check_samples(None if calibrating is None else calibrating.model_input)
    check_labels(spec.gate, {} if calibrating is None else calibrating.labels)
    if spec.tower.precision is Precision.INT8 and given is None and calibrating is None:
        raise SpecError(
            "tower.precision int8: needs samples of real requests to choose its integers from "
            "(calibration samples), none were given"
        )
    with written_id_maps(repository, spec, order.id_maps, order.placed, progress) as written:
        if given is None and calibrating is not None:
            first = min(DEFAULT_SAMPLES, calibrating.model_input.batch_size)
            asked = calibrating.model_input.samples(0, first)
        else:
            asked = given if given is not None else written.generate()
        golden_input = written.mapped(asked)
        ZeroPadding(spec).look(golden_input)
        sent = [asked] if given is not None or calibrating is None else []
        if calibrating is not None:
            sent.append(calibrating.model_input)
            mapped = written.mapped(calibrating.model_input)
            calibrating = replace(calibrating, model_input=mapped)
        measured_on = None if given is None else golden_input
        for_tower = measured_on if calibrating is None else calibrating.model_input
        prepared = prepare_inputs(planned, tower, for_tower, progress)
        found = [] if parts is None else find_parts(repository, prepared.formats, parts)
        trained = Fp32Model(prepared.spec, prepared.formats.weights, tower)
        is_first = given is None and calibrating is not None
        other_input = None if is_first else golden_input
        imported = check_import(
            order.trained_model(trained),
            source,
            None if other_input is None else order.trained_rows(other_input),
            None
            if calibrating is None
            else replace(calibrating, model_input=order.trained_rows(calibrating.model_input)),
            progress,
            sent=sent,
        )
        with repository.staging(spec.name) as staged, storage_errors(staged):
            check_finite_scores(trained, golden_input)
            if parts is None:
                tables = write_tables(staged, prepared.formats, progress)
            else:
                tables = join_tables(staged, repository, prepared.formats, found, progress)
            written.move_to(staged)
            scores = trained.scores(golden_input)
            golden_requests = GoldenRequests(asked, scores)
            manifest = write_rest(staged, prepared, tables, golden_requests, written)
            progress("scoring golden requests", 0, 1)
            # The gate runs on this machine, whatever the topologies.
            here = CostModel(planned.uses, parse_topology("cpu:1"))
            served = Model(
                Artifact(staged, manifest),
                make_plan(here).plan,
                products=ProductsOption.PUBLISHED,
            )
            in_fp32 = served
            if spec.tower.precision is not Precision.FP32:
                in_fp32 = served.with_tower(_tower_of(served, in_fp32=True))
                check_independence(in_fp32, in_fp32=True)
            check_requests(in_fp32, golden_input)
            judged = _judged(served)
            golden = golden_record(
                manifest.golden,
                spec.gate,
                [_check_golden(one, prepared, golden_input) for one in judged],
            )
            progress("scoring golden requests", 1, 1)
            report = replace(quantization_report(prepared.formats, tables), imported=imported)
            if calibrating is not None:
                measured = calibrate(prepared.formats, tower, calibrating, judged[0].run, progress)
                try:
                    check_quality(spec.gate, measured, spec.name)
                except GateError as error:
                    raise GateError(
                        f"{error}{_tower_blame(judged[0], prepared, calibrating.model_input)}"
                    ) from error
                report = replace(report, calibration=measured)
            name = write_report(staged, report)
            reports = {name: file_record(staged / name)}
            complete = replace(
                manifest,
                golden=golden,
                files=manifest.files | reports,
                imported=imported,
                provenance=provenance,
            )
            path = repository.commit(staged, complete, sealing=Sealing.by(keys), progress=progress)
    remove_parts(repository, found)
    return PublishedVersion(
        path=path,
        location=repository.where(spec.name, int(path.name)),
        version=int(path.name),
        fp32_bytes=sum(report.fp32_bytes for report in tables.reports),
        table_bytes=sum(tables.files[name].bytes for name in complete.table_files),
        max_score_diff=golden.max_score_diff,
        compared=import_text(imported),
        planning_seconds=planned.seconds,
        report=report,
    )


def _judged(served: Model) -> list[Model]:
    if served.artifact.manifest.tower.precision is not Precision.TF32:
        return [served]
    return [served.with_tower(_tower_of(served, tf32=True)), served]


def _tower_of(served: Model, *, tf32: bool = False, in_fp32: bool = False) -> Tower:
    return Tower.load(
        served.artifact.path / served.artifact.manifest.tower.file,
        dense=served.spec.dense.inputs,
        embedding_width=served.spec.embedding_width,
        sequences=served.spec.tower_sequences,
        outputs=served.spec.tower.outputs,
        tf32=tf32,
        in_fp32=in_fp32,
    )


def _check_golden(
    served: Model, made_of: PreparedInputs, model_input: ModelInput
) -> dict[str, ScoreDifference]:
    try:
        return golden_differences(served)
    except GateError as error:
        model = Fp32Model(made_of.spec, made_of.formats.weights, made_of.tower)
        published = published_mix(made_of.formats)
        found = table_contributions(model, published, model_input)
        tower = _tower_blame(served, made_of, model_input)
        raise GateError(f"{error}{blame(found)}{tower}") from error


def _tower_blame(served: Model, made_of: PreparedInputs, model_input: ModelInput) -> str:
    """The end of a sentence on the effect of the tower's precision, with rows as trained."""
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
