"""Shows the differences between two versions."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from serving.commands.console import JsonOption, figure_table, print_result, progress_bars
from serving.commands.models.version import output_text
from serving.commands.options.version_options import named_version
from serving.commands.repo.arguments import LocationArgument, ModelArgument
from sharded_infer.artifacts.provenance import provenance_text
from sharded_infer.byte_sizes import size_text
from sharded_infer.reports.quantization.table_errors import UNKNOWN, error_text
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.version_diff import (
    GateResult,
    TableDiff,
    TableSide,
    diff_versions,
)


def repo_diff_command(
    location: LocationArgument,
    model: ModelArgument,
    first: Annotated[str, typer.Argument(metavar="A", help="Version, label or latest.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Version, label or latest.")],
    as_json: JsonOption = False,
) -> None:
    """Show what changed from A to B: rows, formats, errors and sizes by table, and the gate.

    Rows are compared as they are stored, where both versions store a table in the same format.
    """
    repository = Repository(location)
    versions = (named_version(repository, model, first), named_version(repository, model, second))
    with progress_bars() as progress:
        diff = diff_versions(repository, model, versions, progress)
    headings = ("table", "rows", "changed", "format", "error", "size")
    title = f"{model}: {versions[0]} -> {versions[1]}"
    table = figure_table(title, headings, left=("table", "format"))
    for entry in diff.tables:
        table.add_row(entry.name, *_cells(entry))
    sources = zip(diff.versions, diff.provenances, strict=True)
    (golden, golden_after), (auc, auc_after) = map(_golden, diff.gates), map(_auc, diff.gates)
    texts = [
        *(f"version {n}: {provenance_text(p)}" for n, p in sources if any(diff.provenances)),
        f"tower {'changed' if diff.tower_changed else 'unchanged'}",
        f"golden requests within {golden}, then {golden_after}",
        f"calibration samples: {auc}, then {auc_after}",
        f"{size_text(diff.file_bytes[0])}, then {size_text(diff.file_bytes[1])}, of which "
        f"{size_text(diff.new_bytes)} are new",
    ]
    print_result(asdict(diff), table, *texts, as_json=as_json)


def _cells(entry: TableDiff) -> tuple[str, str, str, str, str]:
    sides = (entry.before, entry.after)
    if entry.before is None or entry.after is None:
        changed = "new" if entry.before is None else "gone"
    elif entry.rows_changed is None:
        changed = "all: other rows"
    else:
        share = entry.rows_changed / max(1, min(entry.before.rows, entry.after.rows))
        changed = f"{entry.rows_changed:,} ({share:.1%})" if entry.rows_changed else "none"

    def both(text: Callable[[TableSide], str]) -> str:
        texts = [text(side) for side in sides if side is not None]
        return " -> ".join(dict.fromkeys(texts))

    return (
        both(lambda side: f"{side.rows:,}"),
        changed,
        both(lambda side: f"{side.row_format}, dim {side.dim}"),
        both(lambda side: error_text(side.relative_error)),
        both(lambda side: size_text(side.stored_bytes)),
    )


def _golden(gate: GateResult) -> str:
    if gate.outputs:
        return "; ".join(map(output_text, gate.outputs))
    return f"{gate.max_score_diff:.2g} of fp32 ({gate.allowed_score_diff:g} allowed)"


def _auc(gate: GateResult) -> str:
    known = [output for output in gate.output_auc if output.auc is not None]
    if known:
        return "AUC of " + "; ".join(
            f"{o.name} {o.auc:.5f} (fp32 {UNKNOWN if o.fp32_auc is None else f'{o.fp32_auc:.5f}'})"
            for o in known
        )
    if gate.auc is None or gate.fp32_auc is None:
        return "no labels"
    return f"AUC {gate.auc:.5f} (fp32 {gate.fp32_auc:.5f})"
