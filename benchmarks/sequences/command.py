"""Servers of towers over histories: short and long ones together, and the user cache."""

from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from benchmarks.sequences.growing_users import ANCHOR, measure_growing_users
from benchmarks.sequences.mixed_lengths import measure_mixed_lengths
from benchmarks.sequences.sequence_traffic import SequenceTraffic
from benchmarks.sequences.user_caches import measure_user_cache
from serving.bench.turns import Turns
from serving.bench.workloads.sequence_models import SEQUENCE_MODELS
from serving.commands.bench.options import (
    PairsOption,
    RoundsOption,
    SecondsOption,
    ServeOption,
    TowerPrecision,
)
from serving.commands.bench.report import Report, bench_command
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision


class SequencePart(StrEnum):
    """Parts of the benchmark."""

    LENGTHS = "lengths"
    USERS = "users"


class SequenceWorkload(StrEnum):
    """Towers over a user's history."""

    DIN = "din"
    SASREC = "sasrec"
    SASREC_FORWARD = "sasrec-forward"
    HSTU_SMALL = "hstu-small"


@bench_command
def sequences_command(
    progress: Progress,
    part: Annotated[
        SequencePart,
        typer.Argument(
            help="lengths: requests with short histories beside long ones, and without; users: "
            "frequent users with a user cache, and without."
        ),
    ] = SequencePart.LENGTHS,
    workload: Annotated[
        SequenceWorkload, typer.Option(help="Architecture of the tower, with random weights.")
    ] = SequenceWorkload.SASREC,
    precision: TowerPrecision = Precision.FP32,
    rows: Annotated[int, typer.Option(min=1, help="Items.")] = 100_000,
    candidates: PairsOption = 100,
    shortest: Annotated[
        int, typer.Option(min=1, help="lengths: ids of the shortest history.")
    ] = 10,
    longest: Annotated[
        int, typer.Option(min=1, help="lengths: ids of the longest history.")
    ] = 1000,
    short: Annotated[
        int, typer.Option(min=1, help="lengths: the most ids of a history that counts as short.")
    ] = 100,
    history: Annotated[int, typer.Option(min=1, help="users: ids of each history.")] = 200,
    users: Annotated[
        int, typer.Option(min=1, help="users: users, drawn with Zipf frequencies.")
    ] = 100_000,
    cache_mib: Annotated[
        int, typer.Option(min=1, help="users: `serve --user-cache-mib` of the server with a cache.")
    ] = 64,
    grow: Annotated[
        bool,
        typer.Option(
            help="users: each history is one to three items longer than the user's last one; new "
            "users, and predict calls after prepare calls, are measured too."
        ),
    ] = False,
    share: Annotated[
        float,
        typer.Option(
            help="Load: lengths: as a share of the time that a server keeps its core busy; users: "
            "of the capacity.",
            min=0.01,
            max=0.95,
        ),
    ] = 0.6,
    max_batch: Annotated[
        int, typer.Option(min=1, help="`[serving] max_batch` of the model.")
    ] = 1024,
    rounds: RoundsOption = 5,
    seconds: SecondsOption = 15.0,
    serve_option: ServeOption = None,
) -> Report:
    """Measure servers of towers over users' histories, under requests at random times over gRPC.

    A request has one user's history and some candidates. Two servers on one core take turns, and
    the load has another core.

    lengths: histories of one server are lognormal from --shortest to --longest; the other server
    gets only the short ones of these. Each keeps its core busy for the same share of the time.

    users: both servers get the same requests at the same times, at a share of the capacity without
    a cache. Answers of hits are compared with those of the other server, to the bit.
    """
    model, is_users = SEQUENCE_MODELS[workload], part is SequencePart.USERS
    longest = history + (ANCHOR if grow else 0) if is_users else longest
    spec = model.spec(rows=rows, history=longest, precision=precision)
    spec = replace(spec, serving=replace(spec.serving, max_batch=max_batch))
    traffic = SequenceTraffic(model, spec, candidates)
    measure = (
        partial(
            measure_growing_users if grow else measure_user_cache,
            history=history,
            users=users,
            cache_mib=cache_mib,
        )
        if is_users
        else partial(measure_mixed_lengths, shortest=shortest, longest=longest, short=short)
    )
    report = measure(
        traffic,
        share=share,
        options=tuple(serve_option or ()),
        turns=Turns(rounds, seconds, progress),
    )
    note = f"\n{workload}, {precision} tower, {candidates} candidates, at {share:.0%}, one core"
    fields = {
        "workload": workload,
        "precision": precision,
        "candidates": candidates,
        "max_batch": max_batch,
        "share": share,
        "seconds": seconds,
    }
    return replace(report, notes=[*report.notes, note], fields={**fields, **report.fields})
