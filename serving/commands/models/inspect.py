"""Contents of a version."""

import json
from pathlib import Path
from typing import Annotated

import typer

from serving.commands.console import OUT, print_json, write_target
from serving.commands.lazy_group import load_by_name
from serving.commands.models.quantization_tables import render_report
from serving.commands.options.json_option import JsonOption
from serving.commands.options.version_options import (
    ModelOption,
    RepositoryOption,
    TrustedKeyOption,
    VersionOption,
)
from serving.commands.version_summary import print_version
from serving.commands.versions import key_ids, only_model
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import (
    REPORT_NAME,
    Manifest,
    manifest_fields,
)
from sharded_infer.errors import ArtifactError
from sharded_infer.repositories.repository import Repository


def inspect_command(
    repository: RepositoryOption,
    model: ModelOption = None,
    version: VersionOption = None,
    report: Annotated[
        bool, typer.Option("--report", help="Show what quantization did instead.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Also write the report as a page to this file.")
    ] = None,
    trusted_key: TrustedKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a version's tables, sizes, plans, tower and signatures. Reads the manifest only.

    Beside the tower's precision it shows the one that this machine would run.
    Signatures are checked if --trusted-key names keys.

    With --report, show what quantization did to the tables and scores; with --html, write the same
    as a page that needs no network.
    """
    published = Repository(repository, trusted_keys=trusted_key or ())
    artifact = published.open(only_model(published, model), version)
    manifest = artifact.manifest
    if html is not None:
        read = load_by_name("sharded_infer.artifacts.report_file:report_from_fields")
        render = load_by_name("sharded_infer.reports.quantization.page:render_quantization_page")
        write_target(html, render(read(_report_fields(artifact))).encode())
    if report:
        fields = _report_fields(artifact)
        if as_json:
            print_json(fields)
            return
        for part in render_report(fields):
            OUT.print(part)
        return
    if as_json:
        signed_by = key_ids(published, manifest.model, manifest.version)
        print_json({**manifest_fields(manifest), "signed_by": signed_by})
        return
    print_version(artifact, published, products=_products(manifest))


def _products(manifest: Manifest) -> str:
    choose_products = load_by_name("sharded_infer.towers.host_products:choose_products")
    option = load_by_name("sharded_infer.towers.host_products:ProductsOption")
    chosen = choose_products(manifest.tower.precision, option.AUTO)
    if chosen is None:
        return "int8 or fp32, whichever is timed faster when it is loaded here"
    if chosen.running is chosen.published:
        return str(chosen.running)
    return f"{chosen.running}: {chosen.reason}"


def _report_fields(artifact: Artifact) -> dict[str, object]:
    content, where = artifact.read_small(REPORT_NAME), artifact.path / REPORT_NAME
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ArtifactError(f"{where}: expected a JSON object, got {fields!r:.80}")
    return fields
