"""Shows and verifies a version."""

import json
from typing import Annotated

import typer

from kernels.wording import counted
from serving.commands.console import OUT, JsonOption, print_json, print_result, progress_bars
from serving.commands.lazy_group import load_by_name
from serving.commands.models.quantization import HtmlOption, write_page
from serving.commands.models.quantization_tables import render_report
from serving.commands.options.version_options import (
    ModelOption,
    RepositoryOption,
    TrustedKeyOption,
    VersionOption,
)
from serving.commands.version_summary import NO_CHECKSUM, print_version
from serving.commands.versions import fetched_artifact, key_ids, only_model
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import REPORT_NAME, Manifest, manifest_fields
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import ArtifactError
from sharded_infer.repositories.repository import Repository


def inspect_command(
    repository: RepositoryOption,
    model: ModelOption = None,
    version: VersionOption = None,
    report: Annotated[
        bool, typer.Option("--report", help="Show what quantization did instead.")
    ] = False,
    html: HtmlOption = None,
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
    fields = _report_fields(artifact) if report or html is not None else {}
    if html is not None:
        read = load_by_name("sharded_infer.artifacts.report_file:report_from_fields")
        write_page(html, read(fields))
    if report:
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


def verify_command(
    repository: RepositoryOption,
    model: ModelOption = None,
    version: VersionOption = None,
    trusted_key: TrustedKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every file and plan, then score the golden requests.

    Sizes and hashes are compared with the manifest, scores with the fp32 model's. With
    --trusted-key, the manifest's signature is checked first.
    """
    published = Repository(repository, trusted_keys=trusted_key or ())
    name = only_model(published, model)
    with progress_bars() as progress:
        read = published.verify(name, version, progress)
        with fetched_artifact(published, name, version, progress) as artifact:
            manifest = artifact.manifest
            differences = load_by_name("serving.commands.opened_version:golden_differences")(
                artifact
            )
    fields = {
        "model": manifest.model,
        "version": manifest.version,
        "files": len(manifest.files),
        "bytes": read,
        "manifest_sha256": manifest.sha256,
        "signed_by": key_ids(published, name, manifest.version),
        "max_score_diff": max(differences.values()),
        "plans": list(differences),
    }
    print_result(
        fields,
        f"{published.where(manifest.model, manifest.version)}: "
        f"{counted(len(manifest.files), 'file')}, "
        f"{size_text(read)}, all as the manifest says; golden requests within "
        f"{max(differences.values()):.2g} of fp32"
        f"{'' if manifest.sha256 else f'; the manifest is {NO_CHECKSUM}'}"
        f"{'; signed by a trusted key' if trusted_key else ''}",
        as_json=as_json,
    )
