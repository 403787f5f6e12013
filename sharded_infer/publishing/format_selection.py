"""The row format of each table, decided before any long work."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kernels.row_format import RowFormat
from quant.budget import (
    BudgetError,
    Candidate,
    TableCandidates,
    most_exact,
    smallest,
    total_bytes,
    total_loss,
    useful_candidates,
    within_bytes,
    within_loss,
)
from quant.encoder import UnrepresentableRowError
from quant.format_losses import measure_losses
from quant.report import BudgetReport
from quant.sources.table_weight import TableWeight, find_weight
from quant.sources.weight_source import SourceError, WeightSource
from sharded_infer.byte_sizes import parse_size, size_text
from sharded_infer.errors import SpecError, WeightsError
from sharded_infer.planning.plan import StoredTable
from sharded_infer.planning.table_use import TableUse, table_uses
from sharded_infer.progress import Progress, no_progress
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec, TableSpec, is_too_narrow

# TorchRec's names of a collection's tables.
_TORCHREC_TABLE = re.compile(r"(?:.*\.)?(?:embedding_bags|embeddings)\.(?P<table>.+)\.weight")


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """Storage of each table: a spec with all formats, and tables in its order."""

    spec: ModelSpec
    weights: Mapping[str, TableWeight]
    tables: tuple[StoredTable, ...]
    reasons: Mapping[str, str]
    budget: BudgetReport | None = None


def plan_formats(
    spec: ModelSpec,
    source: WeightSource,
    statistics: Mapping[str, FeatureStatistics] | None = None,
    progress: Progress = no_progress,
) -> FormatPlan:
    """Find every table's weight and decide its format.

    Precedence: the table's own format, the first override that matches its name, the budget, the
    default. Quantized rows keep their format. `statistics` are the features' use, for the budget;
    None takes the spec's own. `progress` is called with the tables sampled for a budget.

    Raises:
        WeightsError: as `find_weights`; or a sampled row cannot be stored.
        SpecError: the budget cannot be met; gives the minimum.
    """
    weights = find_weights(spec, source)
    formats: dict[str, RowFormat] = {}
    reasons: dict[str, str] = {}
    for table in spec.tables:
        stored = weights[table.name].stored
        if stored is not None:
            formats[table.name], reasons[table.name] = stored, "taken over as it was quantized"
        elif (fixed := spec.fixed_format(table)) is not None:
            formats[table.name], reasons[table.name] = fixed
            if is_too_narrow(table.dim, fixed[0]):
                reasons[table.name] += (
                    f"; a row of dim {table.dim} takes {fixed[0].row_bytes(table.dim)} bytes, as "
                    f"fp16 {RowFormat.FP16.row_bytes(table.dim)}"
                )
    free = [table for table in spec.tables if table.name not in formats]
    budget = None
    if spec.quantization.has_budget:
        uses = {use.table.name: use for use in table_uses(spec, statistics)}
        measured = _Budget(spec, weights, uses, formats, progress)
        budget = measured.choose(free, formats, reasons)
    else:
        for table in free:
            formats[table.name], reasons[table.name] = spec.default_format(table)
    resolved = replace(spec, tables=tuple(replace(t, format=formats[t.name]) for t in spec.tables))
    tables = tuple(StoredTable(t.name, t.rows, t.dim, formats[t.name]) for t in spec.tables)
    return FormatPlan(resolved, weights, tables, reasons, budget)


def find_weights(spec: ModelSpec, source: WeightSource) -> dict[str, TableWeight]:
    """Every table's weight, by its name.

    Raises WeightsError if a table is missing, misshapen, or in the weights but not in the spec.
    """
    weights = {}
    try:
        for table in spec.tables:
            fixed = spec.fixed_format(table)
            weights[table.name] = find_weight(
                source,
                table.name,
                table.weights,
                rows=table.rows,
                dim=table.dim,
                row_format=None if fixed is None else fixed[0],
            )
    except SourceError as error:
        raise WeightsError(str(error)) from error
    used = {weight.key for weight in weights.values()}
    for key in sorted(set(source.keys()) - used):
        match = _TORCHREC_TABLE.fullmatch(key)
        if match is None or match["table"] in weights:
            continue
        if any(fnmatch.fnmatchcase(match["table"], p) for p in spec.quantization.ignore):
            continue
        raise WeightsError(
            f"table {match['table']!r}: {source.description} holds it as {key!r}, the spec does "
            "not; describe it, or name it in quantization.ignore"
        )
    return weights


class _Budget:
    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, TableWeight],
        uses: Mapping[str, TableUse],
        fixed: Mapping[str, RowFormat],
        progress: Progress,
    ) -> None:
        self._spec = spec
        self._candidates: dict[str, tuple[Candidate, ...]] = {}
        self._sampled = 0
        losses, power = {}, 0.0
        for number, table in enumerate(spec.tables):
            progress("sampling tables", number, len(spec.tables))
            use = uses[table.name]
            formats = (
                [fixed[table.name]] if table.name in fixed else list(spec.quantization.formats)
            )
            try:
                measured = measure_losses(
                    weights[table.name],
                    formats,
                    partial(_uses, use.features, table.rows),
                    clip=spec.quantization.clip,
                )
            except UnrepresentableRowError as error:
                raise WeightsError(
                    f"table {table.name!r}: a sampled row {error.reason}, so not all of "
                    f"{', '.join(formats)} can be tried; see quantization.formats"
                ) from error
            vectors = _rows_a_sample(table, use)
            power += vectors * measured.power
            stored = weights[table.name].stored is not None
            losses[table.name] = {
                f: 0.0 if stored else vectors * measured.by_format[f] for f in formats
            }
            self._sampled += measured.sampled_rows
        progress("sampling tables", len(spec.tables), len(spec.tables))
        for table in spec.tables:
            self._candidates[table.name] = tuple(
                Candidate(f, table.rows * f.row_bytes(table.dim), loss / power if power else 0.0)
                for f, loss in losses[table.name].items()
            )

    def choose(
        self, free: Sequence[TableSpec], formats: dict[str, RowFormat], reasons: dict[str, str]
    ) -> BudgetReport:
        quantization = self._spec.quantization
        tables = [TableCandidates(t.name, self._candidates[t.name]) for t in self._spec.tables]
        least, exact = smallest(tables), most_exact(tables)
        try:
            if quantization.memory_budget is not None:
                kind = "memory"
                limit: float = parse_size(quantization.memory_budget, "quantization.memory_budget")
                chosen = within_bytes(tables, int(limit))
            else:
                kind, limit = "error", quantization.error_budget or 0.0
                chosen = within_loss(tables, limit)
        except BudgetError as error:
            raise SpecError(
                f"{error}; the smallest choice takes {size_text(total_bytes(least))} and loses "
                f"{total_loss(least):.3g} of the embeddings' power, the most exact takes "
                f"{size_text(total_bytes(exact))} and loses {total_loss(exact):.3g}"
            ) from error
        by_name = {t.table: c for t, c in zip(tables, chosen, strict=True)}
        for table in free:
            formats[table.name] = by_name[table.name].row_format
            useful = useful_candidates(TableCandidates(table.name, self._candidates[table.name]))
            reasons[table.name] = _reason(by_name[table.name], useful)
        return BudgetReport(
            kind=kind,
            limit=limit,
            bytes=total_bytes(chosen),
            loss=total_loss(chosen),
            least_bytes=total_bytes(least),
            least_loss=total_loss(exact),
            sampled_rows=self._sampled,
        )


def _reason(chosen: Candidate, useful: Sequence[Candidate]) -> str:
    parts = []
    position = useful.index(chosen)
    if position > 0:
        other = useful[position - 1]
        parts.append(
            f"{other.row_format} would save {size_text(chosen.bytes - other.bytes)} and add "
            f"{other.loss - chosen.loss:.2g} of loss"
        )
    if position + 1 < len(useful):
        other = useful[position + 1]
        parts.append(
            f"{other.row_format} would take {size_text(other.bytes - chosen.bytes)} more and save "
            f"{chosen.loss - other.loss:.2g}"
        )
    return "chosen by the budget: " + ("; ".join(parts) or "no other format was allowed")


def _rows_a_sample(table: TableSpec, use: TableUse) -> float:
    """The number of rows whose squared errors add up in a sample's vectors.

    A sum of n rows has n times a row's squared error, and so have n rows of a sequence; a mean of n
    rows has 1/n times.
    """
    if table.pooling != "mean":
        return use.pooling_factor
    rows = sum(f.pooling_factor for f in use.unpooled)
    return rows + _of_means(use.features) - _of_means(use.unpooled)


def _of_means(features: Sequence[FeatureStatistics]) -> float:
    return sum(1 / max(1.0, f.pooling_factor) for f in features)


def _uses(features: Sequence[FeatureStatistics], rows: int, numbers: Tensor) -> Tensor:
    uses = torch.zeros(len(numbers))
    for feature in features:
        share = torch.ones(len(numbers))
        if feature.histogram and sum(feature.histogram):
            bins = torch.tensor(feature.histogram)
            share = (bins / bins.mean())[numbers * len(bins) // rows]
        uses += feature.pooling_factor * share
    return uses
