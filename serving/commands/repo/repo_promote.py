"""Promotes a version step by step, and rolls back if its figures break a bound."""

from dataclasses import asdict
from time import time
from typing import Annotated, Any

import typer

from serving.commands.console import JsonOption, print_result
from serving.commands.lazy_group import load_by_name
from serving.commands.options.caller_options import CallerOptions, caller_of
from serving.commands.options.durations import parse_seconds
from serving.commands.options.option_fields import declare_fields
from serving.commands.repo.arguments import LocationArgument, ModelArgument
from serving.commands.repo.promotion_text import promotion_text
from serving.remote.promotion.comparison import Comparison
from serving.remote.promotion.promoter import STEPS, OnSilence, PromotionPlan, promote
from sharded_infer.errors import InputError
from sharded_infer.repositories.promotion.record import Promotion
from sharded_infer.repositories.repository import Repository

_DEFAULT_STEPS = ",".join(map(str, STEPS))


def repo_promote_command(
    location: LocationArgument,
    model: ModelArgument,
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="Label of the version to promote.")
    ] = "canary",
    target: Annotated[
        str, typer.Argument(metavar="TO", help="Label to move to that version.")
    ] = "stable",
    servers: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            metavar="URL",
            help="HTTP port of a server that follows the labels, such as http://host:8000; name "
            "every server.",
        ),
    ] = None,
    watch: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar="DURATION",
            help="Time of all steps together, such as 90s, 10m or 2h.",
        ),
    ] = "10m",  # type: ignore[assignment]
    steps: Annotated[
        str, typer.Option(help="Shares of the requests in percent, ascending, with commas between.")
    ] = _DEFAULT_STEPS,
    on_silence: Annotated[
        OnSilence,
        typer.Option(
            help="Where too little is known at the end of a step: give all requests back to TO, or "
            "keep the weights."
        ),
    ] = OnSilence.ROLLBACK,
    lease: Annotated[
        float,
        typer.Option(
            parser=parse_seconds,
            metavar="DURATION",
            help="Without a sign of life for so long, servers give TO all requests. Longer than "
            "twice the servers' --poll-seconds.",
        ),
    ] = "60s",  # type: ignore[assignment]
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with a promotion whose process has ended, with its labels, steps and "
            "--watch; waits until its lease is over.",
        ),
    ] = False,
    record: Annotated[
        str | None,
        typer.Option(
            metavar="RECORD",
            help="Judge by recorded requests (serve --record), a folder or URL, which both "
            "versions score here, in place of --server; TO is moved at once.",
        ),
    ] = None,
    as_json: JsonOption = False,
    **credentials: Any,
) -> None:
    """Promote a version step by step, and take it back if it is worse.

    Its share of the requests grows while its figures keep the bounds.

    The bounds are those of [release] in the version's spec. In each step the servers' metrics
    pages tell how both versions do. If a bound is broken, TO gets all requests at once, the
    reason is kept with the label (repo show), and the exit code is 1. After the last step TO is
    moved to the version, and all weights are taken away. With --json, prints one line a step.
    """
    if record is not None:
        if servers or resume:
            raise InputError("--record: expected neither --server nor --resume")
        promote_recorded = load_by_name("serving.commands.repo.recorded_promotion:promote_recorded")
        version, comparison = promote_recorded(Repository(location), model, record, source, target)
        fields = {"model": model, "promoted": version, "requests": int(comparison.new.answered)}
        text = f"{model}: version {version} is promoted, by {fields['requests']} recorded requests"
        print_result(fields, text, as_json=as_json)
        return
    caller = caller_of(credentials)
    shares = steps.split(",")
    if not all(share.isascii() and share.isdigit() for share in shares):
        raise InputError(f"--steps: expected percents such as {_DEFAULT_STEPS}, got {steps!r}")
    percents = tuple(map(int, shares))
    plan = PromotionPlan(source, target, percents, watch, on_silence, lease)

    def told(promotion: Promotion, comparison: Comparison | None) -> None:
        if comparison is not None:
            return
        fields = {"model": model, "promotion": asdict(promotion)}
        print_result(fields, f"{model}: {promotion_text(promotion, time())}", as_json=as_json)

    version = promote(
        Repository(location), model, servers or [], plan, resume=resume, caller=caller, told=told
    )
    fields = {"model": model, "promoted": version}
    print_result(fields, f"{model}: version {version} is promoted", as_json=as_json)


declare_fields(repo_promote_command, CallerOptions, before="as_json")
