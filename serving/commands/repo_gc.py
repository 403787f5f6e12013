"""Removes versions that nobody needs."""

from dataclasses import asdict
from typing import Annotated

import typer

from kernels.wording import counted
from serving.commands.console import OUT, print_json
from serving.commands.json_option import JsonOption
from serving.commands.repo_arguments import DryRunOption, LocationArgument
from serving.progress import progress_bars
from sharded_infer.collection import SAFE_SECONDS, Collected, collect
from sharded_infer.repository import Repository
from sharded_infer.sizes import size_text


def repo_gc_command(
    location: LocationArgument,
    keep: Annotated[int, typer.Option(help="Latest versions that stay.", min=1)],
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Model; default: all.")
    ] = None,
    safe_hours: Annotated[
        float,
        typer.Option(
            help="In a store: files that no version names go if they were written longer ago. "
            "Longer than any upload takes.",
            min=0.0,
        ),
    ] = SAFE_SECONDS / 3600,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old versions that no label names and that nobody uses.

    What a label would be rolled back to stays too. Killed publishers' leftovers are removed. A
    server that uses a version in a folder keeps it; of a store, servers have copies of their own.
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
    if as_json:
        print_json({"dry_run": dry_run, "models": [_fields(collected) for collected in done]})
        return
    for collected in done:
        _tell(collected, dry_run=dry_run)


def _fields(collected: Collected) -> dict[str, object]:
    kept = {fate.version: fate.kept_because for fate in collected.fates if fate.kept_because}
    return {
        "model": collected.model,
        "removed": collected.removed,
        "kept": kept,
        "freed_bytes": collected.freed_bytes,
        "leftovers": asdict(collected.leftovers),
    }


def _tell(collected: Collected, *, dry_run: bool) -> None:
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
    OUT.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)
