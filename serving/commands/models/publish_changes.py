"""Publishes only changed rows: `publish` with `--changed`, `--base` or `--follow`."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.wording import counted
from serving.commands.console import print_result, progress_bars
from serving.commands.lazy_group import load_by_name
from serving.commands.options.version_options import fetched_artifact, only_model
from serving.host.background import LOWEST, lower_priority, run_when_idle
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import InputError, NotFoundError
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import SigningKey, read_signing_keys

if TYPE_CHECKING:
    from sharded_infer.publishing.deltas.delta_publication import PublishedDelta

Options = Mapping[str, Any]
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """Options of changed rows, one a field."""

    changed: Annotated[
        list[Path] | None,
        typer.Option(
            help="Publish changed rows alone, in front of the base's: a file (.safetensors, .npz, "
            ".parquet) or a folder of them; may be repeated, later rows win. With --weights and "
            "--base instead, the rows that differ from the base are found."
        ),
    ] = None
    base: Annotated[
        int | None, typer.Option(help="The version that is changed; default: the latest.", min=1)
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
    keys = read_signing_keys(options["sign_key"] or ())
    repository = Repository(options["repository"])
    model = only_model(repository, changes.model)
    # Check that the model exists before files are read.
    latest = repository.latest(model)
    nice = changes.nice
    if nice is None and (changes.follow or repository.in_use(model, changes.base or latest)):
        nice = LOWEST
    # Leave the cores to a server of this machine.
    if nice == LOWEST:
        run_when_idle()
    elif nice is not None:
        lower_priority(nice)
    job = _ChangesJob(changes, options, keys, repository, model, as_json)
    if changes.follow is not None:
        job.follow(changes.follow)
        return
    with progress_bars() as progress:
        job.publish(job.read(progress), None, progress)


def _check(changes: ChangeOptions, options: Options) -> None:
    if changes.follow is not None and (changes.changed or changes.tower or changes.base):
        raise InputError("--follow takes no --changed, --tower or --base")
    if changes.changed and options["weights"] is not None:
        raise InputError("--changed and --weights exclude each other")
    has_rows = changes.changed or changes.follow or options["weights"] is not None
    if not has_rows and changes.tower is None:
        raise InputError("--base: expected --changed, --weights or --tower")
    for name in (
        "spec",
        "topology",
        "memory_budget",
        "error_budget",
        "samples",
        "calibration",
        "golden",
        "golden_rows",
    ):
        if options[name] is not None:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag}: changed rows have their base's; publish the model whole")


@dataclass(frozen=True, slots=True)
class _ChangesJob:
    changes: ChangeOptions
    options: Options
    keys: Sequence[SigningKey]
    repository: Repository
    model: str
    as_json: bool

    def read(self, progress: Progress) -> Mapping[str, Any]:
        """Changed rows of the files, or rows of the weights that differ from the base."""
        changes, weights = self.changes, self.options["weights"]
        if weights is None:
            merged = load_by_name("sharded_infer.importing.changes.changed_rows:merged")
            rows: Mapping[str, Any] = {}
            opened = load_by_name("sharded_infer.importing.changes.change_files:open_changes")
            for path in changes.changed or ():
                rows = merged(rows, opened(path))
            return rows
        source = load_by_name("quant.sources.checkpoint:open_weights")(weights)
        compare = load_by_name("sharded_infer.publishing.deltas.changed_weights:changed_weights")
        with fetched_artifact(self.repository, self.model, changes.base, progress) as artifact:
            differing: Mapping[str, Any] = compare(artifact, source, progress)
        if not differing and changes.tower is None:
            raise InputError(f"{weights}: no row differs from the base's")
        return differing

    def follow(self, path: Path) -> None:
        """Publish arriving files until interrupted. The last version names the last file."""
        folder = load_by_name("sharded_infer.importing.changes.followed_folder:FollowedFolder")(
            path
        )
        due = time.monotonic()
        with suppress(KeyboardInterrupt):
            while True:
                pending = folder.pending(self._last_followed())
                if not pending or time.monotonic() < due:
                    time.sleep(_LOOK_SECONDS)
                    continue
                due = time.monotonic() + self.changes.every
                with progress_bars() as progress:
                    self.publish(folder.read(pending), pending[-1].name, progress)

    def publish(self, rows: Mapping[str, Any], followed: str | None, progress: Progress) -> None:
        """Publish changed rows, up to the last followed file, and print the version."""
        options, tower, base = self.options, None, self.changes.base
        load_by_name("torch:set_num_threads")(1)
        if self.changes.tower is not None:
            changed = self.repository.manifest(
                self.model, base or self.repository.latest(self.model)
            )
            another_tower = load_by_name("sharded_infer.importing.tower_source:another_tower")
            tower = another_tower(changed.model_spec(), self.changes.tower)
        module = "sharded_infer.publishing.deltas.delta_publication"
        published: PublishedDelta = load_by_name(f"{module}:publish_delta")(
            self.model,
            rows,
            self.repository,
            base=base,
            tower=tower,
            note=options["note"],
            run_id=options["run_id"],
            source_revision=options["source_revision"],
            followed=followed,
            sign_keys=self.keys,
            progress=progress,
        )
        fields = asdict(published)
        fields["path"] = fields.pop("location")
        counts = ", ".join(f"{name} {count:,}" for name, count in published.changed_rows.items())
        print_result(
            {"model": self.model, **fields},
            f"published {self.model} version {published.version}: "
            f"{counted(sum(published.changed_rows.values()), 'row', ',')} of version "
            f"{published.base} changed ({counts or 'another tower alone'}), "
            f"{size_text(published.written_bytes)} written\n"
            f"golden requests within {published.max_score_diff:.2g} of the rows as trained\n"
            f"{published.location}",
            as_json=self.as_json,
        )

    def _last_followed(self) -> str | None:
        """Last published file of changes, from the latest version that names one."""
        for number in reversed(self.repository.versions(self.model)):
            # The version was removed meanwhile.
            with suppress(NotFoundError):
                base = self.repository.manifest(self.model, number).base
                if base is not None and base.changes is not None:
                    return base.changes
        return None
