"""Prints a summary of a version."""

from kernels.wording import counted
from quant.report import import_text
from serving.commands.console import OUT, figure_table, say
from serving.commands.versions import key_ids
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import GoldenRecord, Manifest, OutputDifference
from sharded_infer.byte_sizes import size_text
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.id_map_spec import HashedRows, SharedRows

# For versions that were published before manifests had a checksum.
NO_CHECKSUM = "without a checksum of its own: an earlier release published it"
NO_BLOCKS = "without hashes of blocks: an earlier release published it"
_SHOWN_ROWS = 4


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
        f"{_parts(manifest)}\n"
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


def _parts(manifest: Manifest) -> str:
    if manifest.has_block_hashes:
        return "shard hosts fetch their own rows, verified by blocks"
    return f"shard hosts fetch it whole: {NO_BLOCKS}"


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
