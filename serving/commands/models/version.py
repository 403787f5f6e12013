"""Shows and verifies a version."""

import json
from typing import Annotated

import typer

from kernels.wording import counted
from quant.report import import_text
from serving.commands.console import (
    OUT,
    JsonOption,
    figure_table,
    print_json,
    print_result,
    progress_bars,
    say,
)
from serving.commands.lazy_group import load_by_name
from serving.commands.models.quantization import HtmlOption, write_page
from serving.commands.models.quantization_tables import render_report
from serving.commands.options.version_options import (
    ModelOption,
    RepositoryOption,
    TrustedKeyOption,
    VersionOption,
    fetched_artifact,
    key_ids,
    only_model,
)
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import (
    REPORT_NAME,
    GoldenRecord,
    Manifest,
    OutputDifference,
    manifest_fields,
)
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import ArtifactError
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.id_map_spec import HashedRows, SharedRows

# For versions that were published before manifests had a checksum.
NO_CHECKSUM = "without a checksum of its own: an earlier release published it"
_SHOWN_ROWS = 4


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

    Beside the tower's precision it shows the one that this machine would run. The tower is read too
    if it has user inputs and is on this machine: a user cache keeps its states by positions of
    histories, or an operator is why it cannot.
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
    spec = manifest.model_spec()
    if spec.tower.user_inputs and (artifact.path / manifest.tower.file).is_file():
        stored = load_by_name("sharded_infer.engines.stored_tower:StoredTower")
        say(f"a user cache keeps states {stored(artifact, spec).kept_states()}")


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


def print_version(
    artifact: Artifact, repository: Repository, *, products: str | None = None
) -> None:
    """Print a version's contents, with the precision of its tower's products on this machine."""
    manifest = artifact.manifest
    headings = ("table", "rows", "dim", "format", "size", "ranks")
    title = f"{manifest.model} version {manifest.version}"
    table = figure_table(title, headings, left=("table", "format"))
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
    here = "" if products is None else f" (on this machine {products})"
    outputs = ", ".join(output.name for output in manifest.tower.outputs)
    held = plan.bytes_by_rank(manifest.stored_tables())
    fetched = "their own rows, verified by blocks"
    if not manifest.has_block_hashes:
        fetched = "it whole: without hashes of blocks: an earlier release published it"
    if manifest.provenance is not None:
        say(manifest.provenance.text)
    say(
        f"created {manifest.created_at} by "
        f"{', '.join(f'{name} {number}' for name, number in manifest.producer.items())}\n"
        f"tower {manifest.tower.precision}{here}, outputs {outputs}\n"
        f"plans for {', '.join(manifest.plans)}; {plan.topology.name} holds "
        f"{', '.join(size_text(used) for used in held)}\n"
        f"{_golden(manifest.golden)}\n"
        f"{import_text(manifest.imported)}\n"
        f"shard hosts fetch {fetched}\n"
        f"{_id_maps(manifest)}"
        f"{_row_places(manifest)}"
        f"{_base(manifest)}"
        f"manifest {'SHA-256 ' + manifest.sha256 if manifest.sha256 else NO_CHECKSUM}\n"
        f"{_signatures(repository, manifest)}\n"
        f"{repository.where(manifest.model, manifest.version)}"
    )


def _signatures(repository: Repository, manifest: Manifest) -> str:
    signed_by = key_ids(repository, manifest.model, manifest.version)
    if not signed_by:
        return "not signed"
    is_checked = repository.signatures.trusted is not None
    checked = "one is trusted" if is_checked else "not checked: no --trusted-key"
    return f"signed by key {', '.join(signed_by)} ({checked})"


def _base(manifest: Manifest) -> str:
    base, overlays = manifest.base, manifest.overlays or ()
    if base is None:
        return ""
    followed = f", up to {base.changes}" if base.changes else ""
    return (
        f"changes version {base.version}{followed}; changed rows in "
        f"{counted(len(overlays), 'file')}, {size_text(manifest.overlay_bytes)}\n"
    )


def _id_maps(manifest: Manifest) -> str:
    said, hashed, files = [], [], manifest.id_maps or {}
    for table in manifest.model_spec().raw_tables:
        if table.id_map is None:
            continue
        if table.id_map.hashed is not None:
            hashed.append(f"{table.name} ({table.id_map.hashed})")
            continue
        unknown = table.id_map.unknown
        if isinstance(unknown, SharedRows):
            unknown_text = f"reads row {', '.join(map(str, unknown.rows[:_SHOWN_ROWS]))}"
            unknown_text += ", …" if len(unknown.rows) > _SHOWN_ROWS else ""
        elif isinstance(unknown, HashedRows):
            unknown_text = "reads a row that its hash chooses"
        else:
            unknown_text = {"error": "is refused", "zero": "is left out"}[str(unknown)]
        size, partition = size_text(manifest.files[files[table.name]].bytes), table.id_map.partition
        if partition is not None:
            size += f" in {counted(len(partition.first_rows), 'part')}"
            unknown_text += " of its part" if isinstance(table.id_map.unknown, SharedRows) else ""
        said.append(f"{table.name} {size} (an unknown id {unknown_text})")
    lines = f"raw ids, id maps of {', '.join(said)}\n" if said else ""
    return lines + (f"raw ids, hashed in {', '.join(hashed)}\n" if hashed else "")


def _row_places(manifest: Manifest) -> str:
    places = manifest.row_places
    if places is None:
        return ""
    said = [f"{name} {size_text(manifest.files[file].bytes)}" for name, file in places.items()]
    return f"rows ordered by frequency, places of {', '.join(said)}\n"


def _golden(golden: GoldenRecord) -> str:
    if golden.outputs is None:
        return (
            f"golden requests within {golden.max_score_diff:.2g} of fp32, "
            f"{golden.allowed_score_diff:g} allowed"
        )
    return "golden requests, from fp32: " + "; ".join(map(output_text, golden.outputs))


def output_text(difference: OutputDifference) -> str:
    """Difference of one output from fp32, and the bound, as a short text."""
    text = f"{difference.name} within {difference.max_score_diff:.2g}"
    if difference.allowed_score_diff is not None:
        text += f" ({difference.allowed_score_diff:g} allowed)"
    if difference.allowed_relative_diff is not None and difference.max_relative_diff is not None:
        text += f", {difference.max_relative_diff:.2g} relative "
        text += f"({difference.allowed_relative_diff:g} allowed)"
    return text
