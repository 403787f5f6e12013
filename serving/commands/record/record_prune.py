"""Removes old files of a recording."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from kernels.wording import counted
from serving.commands.console import JsonOption, print_result
from serving.commands.options.durations import parse_seconds
from serving.commands.options.version_options import ModelOption
from serving.commands.repo.arguments import DryRunOption
from sharded_infer.errors import InputError
from sharded_infer.samples.record import listed_files

_LONGEST = 1e9  # seconds


def record_prune_command(
    record: Annotated[
        str,
        typer.Argument(metavar="RECORD", help="Folder that a server recorded in (--record)."),
    ],
    older_than: Annotated[
        str,
        typer.Option(help="Age from which files are removed: 12h, 30d."),
    ],
    model: ModelOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove files of hours that ended long ago."""
    if "://" in record:
        raise InputError(f"{record}: expected a folder; objects expire by rules of their bucket")
    age = timedelta(seconds=min(parse_seconds(older_than), _LONGEST), hours=1)
    limit, top = datetime.now(UTC) - age, Path(record)
    old = [file for file in listed_files(top, model) if file.hour < limit]
    size = 0
    for file in old:
        size += file.path.stat().st_size
        if not dry_run:
            file.path.unlink()
            _remove_empty(file.path.parent, top)
    what = "would be removed" if dry_run else "removed"
    fields = {"files": len(old), "bytes": size, "removed": not dry_run}
    print_result(fields, f"{counted(len(old), 'file')}, {size} bytes, {what}", as_json=as_json)


def _remove_empty(folder: Path, top: Path) -> None:
    if all(path.name.startswith(".") for path in folder.iterdir()):
        # Of servers that were killed.
        for path in folder.glob(".*.part"):
            path.unlink()
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
