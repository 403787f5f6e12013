"""Publishes only changed rows: `publish` with `--changed`, `--base` or `--follow`."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.wording import counted
from serving.commands.console import print_result
from serving.commands.lazy_group import load_by_name
from serving.commands.progress_bars import progress_bars
from serving.commands.versions import only_model
from serving.host.background import LOWEST, lower_priority, run_when_idle
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import InputError, NotFoundError
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import read_signing_keys

if TYPE_CHECKING:
    from sharded_infer.publishing.deltas.delta_publication import PublishedDelta

Options = Mapping[str, Any]
_LOOK_SECONDS = 0.5
_DELTA = "sharded_infer.publishing.deltas.delta_publication:publish_delta"
_OPEN_CHANGES = "sharded_infer.importing.changes.change_files:open_changes"


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Options of changed rows, one a field."""

    changed: Annotated[
        list[Path] | None,
        typer.Option(
            help="Publish changed rows alone, in front of the base's: a file (.safetensors, .npz, "
            ".parquet) or a folder of them; may be repeated, later rows win. With --weights and "
            "--base instead, the rows that differ from the base are found.",
        ),
    ] = None
    base: Annotated[
        int | None,
        typer.Option(help="The version that is changed; default: the latest.", min=1),
    ] = None
    model: Annotated[
        str | None, typer.Option(help="The model whose rows changed; needed if there are several.")
    ] = None
    tower: Annotated[
        Path | None,
        typer.Option(
            help="Another tower with the changed rows: a .pt2 program, or weights of the base's "
            "architecture."
        ),
    ] = None
    follow: Annotated[
        Path | None,
        typer.Option(
            help="Publish files of changed rows as they come into a folder, in the order of their "
            "names. Ends when it is interrupted."
        ),
    ] = None
    every: Annotated[
        float,
        typer.Option(
            help="Seconds between two versions of --follow at least; files that come meanwhile are "
            "one version.",
            min=0.0,
        ),
    ] = 60.0
    nice: Annotated[
        int | None,
        typer.Option(
            help="Priority of publishing changed rows, as for nice(1): 0 to 19, where it "
            "runs only on cores that nothing else wants. "
            "Default: 19 with --follow, or where a process of this machine uses the base, as "
            "servers do.",
            min=0,
            max=LOWEST,
        ),
    ] = None

    @property
    def are_given(self) -> bool:
        """True if only changed rows are to be published."""
        return bool(self.changed) or self.follow is not None or self.base is not None


def publish_changes(changes: ChangeOptions, options: Options, *, as_json: bool) -> None:
    """Publish changed rows, once or as they arrive; InputError if options contradict each other."""
    _check(changes, options)
    # Refuse unusable keys before anything is read.
    options = {**options, "sign_key": read_signing_keys(options["sign_key"] or ())}
    repository = Repository(options["repository"])
    model = only_model(repository, changes.model)
    # Check that the model exists before files are read.
    versions = repository.versions(model)
    _make_way(changes, repository, model, changes.base or versions[-1])
    if changes.follow is not None:
        _follow(changes, options, repository, model, as_json=as_json)
        return
    with progress_bars() as progress:
        found = _found(changes, options, repository, model, progress)
        published = _publish(changes, options, repository, model, found, None, progress)
    _print(model, published, as_json=as_json)


def _make_way(changes: ChangeOptions, repository: Repository, model: str, base: int) -> None:
    """Lower the priority, which leaves the cores to a server of this machine."""
    nice = changes.nice
    if nice is None and (changes.follow is not None or repository.in_use(model, base)):
        nice = LOWEST
    if nice == LOWEST:
        run_when_idle()
    elif nice is not None:
        lower_priority(nice)


def _check(changes: ChangeOptions, options: Options) -> None:
    if changes.follow is not None and (changes.changed or changes.tower or changes.base):
        raise InputError("--follow takes no --changed, --tower or --base")
    if changes.changed and options["weights"] is not None:
        raise InputError("--changed and --weights exclude each other")
    has_rows = changes.changed or changes.follow or options["weights"] is not None
    if not has_rows and changes.tower is None:
        raise InputError("--base: expected --changed, --weights or --tower")
    refused = {
        "--spec": options["spec"],
        "--topology": options["topology"],
        "--memory-budget": options["memory_budget"],
        "--error-budget": options["error_budget"],
        "--samples": options["samples"],
        "--calibration": options["calibration"],
    }
    if given := [name for name, value in refused.items() if value is not None]:
        raise InputError(f"{given[0]}: changed rows have their base's; publish the model whole")


def _found(
    changes: ChangeOptions,
    options: Options,
    repository: Repository,
    model: str,
    progress: Progress,
) -> Mapping[str, Any]:
    """Changed rows of the files, or rows of the weights that differ from the base."""
    if options["weights"] is None:
        merged = load_by_name("sharded_infer.importing.changes.changed_rows:merged")
        found: Mapping[str, Any] = {}
        for path in changes.changed or ():
            found = merged(found, load_by_name(_OPEN_CHANGES)(path))
        return found
    source = load_by_name("quant.sources.checkpoint:open_weights")(options["weights"])
    artifact = load_by_name("sharded_infer.artifacts.artifact:open_artifact")
    path = repository.fetch(model, changes.base, progress)
    try:
        compare = load_by_name("sharded_infer.publishing.deltas.changed_weights:changed_weights")
        differing: Mapping[str, Any] = compare(artifact(path), source, progress)
    finally:
        repository.release(path)
    if not differing and changes.tower is None:
        raise InputError(f"{options['weights']}: no row differs from the base's")
    return differing


def _publish(
    changes: ChangeOptions,
    options: Options,
    repository: Repository,
    model: str,
    found: Mapping[str, Any],
    followed: str | None,
    progress: Progress,
) -> "PublishedDelta":
    load_by_name("torch:set_num_threads")(1)
    published: PublishedDelta = load_by_name(_DELTA)(
        model,
        found,
        repository,
        base=changes.base,
        tower=None if changes.tower is None else _tower(changes.tower, repository, model, changes),
        note=options["note"],
        run_id=options["run_id"],
        source_revision=options["source_revision"],
        followed=followed,
        sign_keys=options["sign_key"],
        progress=progress,
    )
    return published


def _tower(path: Path, repository: Repository, model: str, changes: ChangeOptions) -> Any:
    number = changes.base or repository.versions(model)[-1]
    spec = repository.manifest(model, number).model_spec()
    return load_by_name("sharded_infer.importing.tower_source:another_tower")(spec, path)


def _follow(
    changes: ChangeOptions,
    options: Options,
    repository: Repository,
    model: str,
    *,
    as_json: bool,
) -> None:
    """Publish arriving files until interrupted. The last version names the last published file."""
    folder = load_by_name("sharded_infer.importing.changes.followed_folder:FollowedFolder")(
        changes.follow
    )
    due = time.monotonic()
    with suppress(KeyboardInterrupt):
        while True:
            last = _followed(repository, model)
            pending = folder.pending(last)
            if not pending or time.monotonic() < due:
                time.sleep(_LOOK_SECONDS)
                continue
            due = time.monotonic() + changes.every
            with progress_bars() as progress:
                found = folder.read(pending)
                name = pending[-1].name
                published = _publish(changes, options, repository, model, found, name, progress)
            _print(model, published, as_json=as_json)


def _followed(repository: Repository, model: str) -> str | None:
    """Last published file of changes, from the latest version that names one."""
    for number in reversed(repository.versions(model)):
        # The version was removed meanwhile.
        with suppress(NotFoundError):
            base = repository.manifest(model, number).base
            if base is not None and base.changes is not None:
                return base.changes
    return None


def _print(model: str, published: "PublishedDelta", *, as_json: bool) -> None:
    fields = asdict(published)
    fields["path"] = fields.pop("location")
    rows = ", ".join(f"{name} {count:,}" for name, count in published.changed_rows.items())
    print_result(
        {"model": model, **fields},
        f"published {model} version {published.version}: "
        f"{counted(sum(published.changed_rows.values()), 'row', ',')} of version "
        f"{published.base} changed ({rows or 'another tower alone'}), "
        f"{size_text(published.written_bytes)} written\n"
        f"golden requests within {published.max_score_diff:.2g} of the rows as trained\n"
        f"{published.location}",
        as_json=as_json,
    )
