"""Removes unused versions."""

from dataclasses import asdict
from typing import Annotated

import typer

from kernels.wording import counted
from serving.commands.console import JsonOption, print_result, progress_bars
from serving.commands.repo.arguments import AnyModelArgument, DryRunOption, LocationArgument
from sharded_infer.byte_sizes import size_text
from sharded_infer.repositories.garbage_collection import SAFE_SECONDS, Collected, collect
from sharded_infer.repositories.repository import Repository


def repo_gc_command(
    location: LocationArgument,
    keep: Annotated[int, typer.Option(help="Number of latest versions to keep.", min=1)],
    model: AnyModelArgument = None,
    safe_hours: Annotated[
        float,
        typer.Option(
            help="Age from which parts that were not joined are removed, and in a store files that "
            "no version names. It must be longer than any upload, and than publishing in parts.",
            min=0.0,
        ),
    ] = SAFE_SECONDS / 3600,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old versions that have no label and are not in use.

    A label's rollback target stays too. Leftovers of killed publishers are removed. A server that
    uses a version in a folder keeps it. For a store, servers have copies of their own.
    """
    repository = Repository(location)
    with progress_bars() as progress:
        done = [
            collect(
                repository,
                name,
                keep=keep,
                dry_run=dry_run,
                safe_seconds=safe_hours * 3600,
                progress=progress,
            )
            for name in ([model] if model is not None else repository.models())
        ]
    fields = {"dry_run": dry_run, "models": [_fields(collected) for collected in done]}
    lines = [line for collected in done for line in _lines(collected, dry_run=dry_run)]
    print_result(fields, "\n".join(lines), as_json=as_json)


def _fields(collected: Collected) -> dict[str, object]:
    kept = {fate.version: fate.kept_because for fate in collected.fates if fate.kept_because}
    return {
        "model": collected.model,
        "removed": collected.removed,
        "kept": kept,
        "freed_bytes": collected.freed_bytes,
        "leftovers": asdict(collected.leftovers),
    }


def _lines(collected: Collected, *, dry_run: bool) -> list[str]:
    verb = "would remove" if dry_run else "removed"
    numbers = ", ".join(map(str, collected.removed)) or "none"
    left = collected.leftovers
    lines = [f"{collected.model}: {verb} versions {numbers}, {size_text(collected.freed_bytes)}"]
    lines += [
        f"- {fate.version} stays: {fate.kept_because}"
        for fate in collected.fates
        if fate.kept_because
    ]
    if left.names:
        lines.append(f"- {verb} {counted(len(left.names), 'leftover')}, {size_text(left.bytes)}")
    return lines
