"""Shows what a version holds."""

from rich.table import Table

from serving.commands.console import OUT, print_json
from serving.commands.versions import (
    JsonOption,
    ModelOption,
    RepositoryOption,
    VersionOption,
    find_artifact,
)
from sharded_infer.manifest import manifest_fields
from sharded_infer.sizes import size_text


def inspect_command(
    repository: RepositoryOption,
    model: ModelOption = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a version holds: tables, sizes, plans and the tower. Reads the manifest only."""
    artifact = find_artifact(repository, model, version)
    manifest = artifact.manifest
    if as_json:
        print_json(manifest_fields(manifest))
        return
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
        f"{manifest.golden.allowed_score_diff:g} allowed\n{artifact.path}",
        highlight=False,
        soft_wrap=True,
    )
