"""Shows what a version holds."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from serving.commands.console import OUT, print_json
from serving.commands.versions import (
    JsonOption,
    ModelOption,
    RepositoryOption,
    VersionOption,
    only_model,
)
from serving.quantization_tables import render_report
from sharded_infer.artifact import Artifact
from sharded_infer.errors import ArtifactError
from sharded_infer.manifest import REPORT_NAME, REPORT_PAGE_NAME, manifest_fields
from sharded_infer.quantize import storage_errors
from sharded_infer.repository import Repository
from sharded_infer.sizes import size_text


def inspect_command(
    repository: RepositoryOption,
    model: ModelOption = None,
    version: VersionOption = None,
    report: Annotated[
        bool, typer.Option("--report", help="Show what quantization did, instead.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Also copy the report's page to this file, to open it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a version holds: tables, sizes, plans and the tower. Reads the manifest only.

    With --report, show what quantization did to the tables and scores; the same as a page is
    report.html in the version's folder.
    """
    published = Repository(repository)
    artifact = published.open(only_model(published, model), version)
    manifest = artifact.manifest
    if html is not None:
        page = artifact.read_small(REPORT_PAGE_NAME)
        with storage_errors(html):
            html.write_bytes(page)
    if report:
        fields = _parsed(artifact.read_small(REPORT_NAME), str(artifact.path / REPORT_NAME))
        if as_json:
            print_json(fields)
            return
        for part in render_report(fields):
            OUT.print(part)
        return
    if as_json:
        print_json(manifest_fields(manifest))
        return
    print_version(artifact, published.where(manifest.model, manifest.version))


def print_version(artifact: Artifact, where: str) -> None:
    """Prints what a version holds.

    Args:
        artifact: the version.
        where: its place, as people write it.
    """
    manifest = artifact.manifest
    table = Table(title=f"{manifest.model} version {manifest.version}", title_justify="left")
    for heading in ("table", "rows", "dim", "format", "size", "ranks"):
        table.add_column(heading, justify="left" if heading in {"table", "format"} else "right")
    plan = artifact.plan()
    for stored in manifest.stored_tables().values():
        ranks = sorted({shard.rank for shard in plan.shards if shard.table == stored.name})
        table.add_row(
            stored.name,
            f"{stored.rows:,}",
            str(stored.dim),
            stored.row_format,
            size_text(stored.stored_bytes),
            "all" if stored.name in plan.replicated else ", ".join(map(str, ranks)),
        )
    OUT.print(table)
    outputs = ", ".join(output.name for output in manifest.tower.outputs)
    held = plan.bytes_by_rank(manifest.stored_tables())
    OUT.print(
        f"created {manifest.created_at} by "
        f"{', '.join(f'{name} {number}' for name, number in manifest.producer.items())}\n"
        f"tower {manifest.tower.precision}, outputs {outputs}\n"
        f"plans for {', '.join(manifest.plans)}; {plan.topology.name} holds "
        f"{', '.join(size_text(used) for used in held)}\n"
        f"golden requests within {manifest.golden.max_score_diff:.2g} of fp32, "
        f"{manifest.golden.allowed_score_diff:g} allowed\n{where}",
        highlight=False,
        soft_wrap=True,
    )


def _parsed(content: bytes, where: str) -> dict[str, object]:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ArtifactError(f"{where}: expected a JSON object, got {fields!r:.80}")
    return fields
