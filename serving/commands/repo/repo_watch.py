"""Follows a server's releases in the terminal."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from time import monotonic, sleep, time
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from serving.commands.console import OUT, JsonOption, print_json
from serving.commands.options.caller_options import CallerOptions, caller_of
from serving.commands.options.option_fields import declare_fields
from serving.commands.options.version_options import ModelOption
from serving.commands.repo.arguments import age_text
from serving.commands.repo.promotion_text import promotion_text
from serving.remote.release_watch import Watched, WatchedVersion, watching
from serving.remote.shadow_figures import ShadowFigures
from sharded_infer.reports.html.text import visible
from sharded_infer.repositories.promotion.record import Promotion
from sharded_infer.repositories.repository import Repository

_COLOURS = {"READY": "green", "LOADING": "yellow", "UNAVAILABLE": "red"}
_ALWAYS = ("model", "version", "state", "names")
_HEADINGS = (*_ALWAYS, "share", "requests", "published", "as the shadow", "")
_FAILED, _TOO_LATE = 1, 2


def repo_watch_command(
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="gRPC address of a running server.")
    ],
    metrics: Annotated[
        str | None,
        typer.Option(
            help="URL of the server's metrics page: adds shares, requests, ages and the "
            "shadow's figures."
        ),
    ] = None,
    location: Annotated[
        str | None,
        typer.Option(
            "--repository",
            "-r",
            metavar="REPO",
            help="The server's repository: adds promotions (repo promote).",
        ),
    ] = None,
    model: ModelOption = None,
    until: Annotated[
        int | None,
        typer.Option(
            help="Exit when this version is ready and --name means it (0), or has failed (1).",
            min=1,
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(help="The name that must mean the version of --until: default, or a label."),
    ] = "default",
    timeout: Annotated[
        float | None,
        typer.Option(help="Exit after this many seconds (exit code 2 with --until).", min=0),
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between updates.", min=0.05)] = 0.5,
    as_json: JsonOption = False,
    **credentials: Any,
) -> None:
    """Show live which versions a server loads and serves, their states and reasons, and labels.

    With --json, prints one line for each change. Ends at Ctrl-C, or as --until and --timeout say.
    The exit code tells a script how a release went. TLS and the token apply to the metrics page
    too.
    """
    caller = caller_of(credentials)
    deadline = None if timeout is None else monotonic() + timeout
    repository = None if location is None else Repository(location)
    with watching(address, metrics, caller) as watch:
        live = None if as_json else Live(console=OUT, auto_refresh=False)
        last: tuple[object, ...] = ()
        try:
            if live is not None:
                live.start()
            while True:
                watched = watch.look()
                if model is not None:
                    kept = tuple(version for version in watched.versions if version.model == model)
                    watched = Watched(kept, watched.age_seconds)
                promotions = {} if repository is None else _promotions(repository, watched)
                now = time()
                # Counts of requests and leases always change: they make no new line.
                steps = {m: (p.by, p.step, p.has_expired(now)) for m, p in promotions.items()}
                states = [replace(state, requests=None, shadow=None) for state in watched.versions]
                said = (states, steps)
                if live is not None:
                    words = (f"{m}: {promotion_text(p, now)}" for m, p in promotions.items())
                    lines = (Text(visible(line)) for line in words)
                    live.update(Group(_table(watched), *lines), refresh=True)
                elif said != last:
                    versions = [asdict(one) for one in watched.versions]
                    fields = {m: asdict(one) for m, one in promotions.items()}
                    print_json({"versions": versions, "promotions": fields})
                    last = said
                code = _outcome(watched, until, name)
                if code is None and deadline is not None and monotonic() >= deadline:
                    code = 0 if until is None else _TOO_LATE
                if code is not None:
                    raise typer.Exit(code)
                sleep(interval)
        finally:
            if live is not None:
                live.stop()


def _promotions(repository: Repository, watched: Watched) -> dict[str, Promotion]:
    models = sorted({one.model for one in watched.versions})
    promotions = ((model, repository.label_history(model).promotion) for model in models)
    return {model: promotion for model, promotion in promotions if promotion is not None}


def _outcome(watched: Watched, until: int | None, name: str) -> int | None:
    states = [one for one in watched.versions if one.version == until]
    if any(one.state == "UNAVAILABLE" and "failed" in one.reason for one in states):
        return _FAILED
    # Ready alone is not enough: after a rollback, the version was ready all the time.
    done = all(one.state == "READY" and name in one.names for one in states)
    return 0 if states and done else None


def _table(watched: Watched) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    rows = [_row(one, watched.age_seconds) for one in watched.versions]
    # Columns without data are left out, such as figures without --metrics.
    shown = [
        place
        for place, heading in enumerate(_HEADINGS)
        if heading in _ALWAYS or any(row[place] for row in rows)
    ]
    for place in shown:
        is_number = _HEADINGS[place] in ("version", "share", "requests")
        table.add_column(_HEADINGS[place], justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    return table


def _row(one: WatchedVersion, age_seconds: Mapping[str, float]) -> tuple[str | Text, ...]:
    is_default = "default" in one.names and one.model in age_seconds
    return (
        one.model,
        str(one.version),
        Text(visible(one.state), style=_COLOURS.get(one.state, "white")),
        ", ".join(one.names),
        "" if one.share is None else f"{one.share:.1%}",
        "" if one.requests is None else f"{one.requests:,}",
        f"{age_text(age_seconds[one.model], decimals=1)} ago" if is_default else "",
        _as_shadow(one.shadow),
        one.reason,
    )


def _as_shadow(figures: ShadowFigures | None) -> str:
    if figures is None:
        return ""
    counts = f"{figures.scored:,} scored, {figures.failed:,} failed, {figures.dropped:,} dropped"
    worst = figures.worst
    if worst is None:
        return counts
    return (
        f"{counts}; {visible(worst.output)} differs by {worst.mean_difference:.3g} on the mean, "
        f"{worst.largest_difference:.3g} at most, KS {worst.distance:.3g}"
    )


declare_fields(repo_watch_command, CallerOptions, before="as_json")
