"""Servers of towers over histories: short and long ones together, and the user cache."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from benchmarks.sequences.mixed_lengths import (
    LengthsMeasurement,
    MixedLengths,
    measure_mixed_lengths,
)
from benchmarks.sequences.sequence_traffic import SequenceTraffic
from benchmarks.sequences.user_caches import CacheMeasurement, UserLoad, measure_user_cache
from serving.bench.workloads.sequence_models import SEQUENCE_MODELS
from serving.commands.bench.report import TEXT, print_notes, print_table
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import TowerPrecision
from serving.commands.progress_bars import progress_bars
from sharded_infer.specs.precision import Precision


class SequencePart(StrEnum):
    """Parts of the benchmark."""

    LENGTHS = "lengths"
    USERS = "users"


class SequenceWorkload(StrEnum):
    """Towers over a user's history."""

    DIN = "din"
    SASREC = "sasrec"
    HSTU_SMALL = "hstu-small"


def sequences_command(
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
    candidates: Annotated[int, typer.Option(min=1, help="Samples of a request.")] = 100,
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
    share: Annotated[
        float,
        typer.Option(
            help="Load: lengths: as a share of the time that a server keeps its core busy; users: "
            "of the capacity.",
            min=0.01,
            max=0.95,
        ),
    ] = 0.6,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of turns.")] = 5,
    seconds: Annotated[
        float, typer.Option(min=0.2, help="Seconds of load on each server in a round.")
    ] = 15.0,
    serve_option: Annotated[
        list[str] | None,
        typer.Option(help="Option for the servers, such as --serve-option=--workers=2."),
    ] = None,
    json_file: JsonFileOption = None,
) -> None:
    """Measure servers of towers over users' histories, under requests at random times over gRPC.

    A request has one user's history and some candidates. Two servers on one core take turns, and
    the load has another core.

    lengths: histories of one server are lognormal from --shortest to --longest; the other server
    gets only the short ones of these. Each keeps its core busy for the same share of the time.

    users: both servers get the same requests at the same times, at a share of the capacity without
    a cache. Answers of hits are compared with those of the other server, to the bit.
    """
    check_target(json_file)
    model, is_users = SEQUENCE_MODELS[workload], part is SequencePart.USERS
    spec = model.spec(rows=rows, history=history if is_users else longest, precision=precision)
    traffic, options = SequenceTraffic(model, spec, candidates), tuple(serve_option or ())
    fields: dict[str, object] = {
        "workload": workload,
        "precision": precision,
        "candidates": candidates,
        "share": share,
        "seconds": seconds,
    }
    with progress_bars() as progress:
        if is_users:
            load = UserLoad(users, history, cache_mib, share, rounds, seconds)
            cache = measure_user_cache(traffic, load, options, progress)
            fields |= {"history": history, "users": users, "cache_mib": cache_mib}
            fields |= {"saved_share": cache.saved, **asdict(cache)}
        else:
            lengths = MixedLengths(shortest, longest, short)
            mixed = measure_mixed_lengths(
                traffic,
                lengths,
                share=share,
                rounds=rounds,
                seconds=seconds,
                options=options,
                progress=progress,
            )
            fields |= {
                "short_p99_over_short_only": mixed.over_short_only("p99"),
                "short_p50_over_short_only": mixed.over_short_only("p50"),
                **asdict(lengths),
                **asdict(mixed),
            }
    if is_users:
        _print_users(cache)
    else:
        _print_lengths(mixed, short)
    print_notes(
        f"\n{workload}, {precision} tower, {candidates} candidates, at {share:.0%}, one core"
    )
    write_json(json_file, fields)


def _print_lengths(found: LengthsMeasurement, short: int) -> None:
    rows = []
    for alone, mixed in zip(found.short, found.mixed, strict=True):
        ratio = mixed.short_ms["p99"] / alone.short_ms["p99"]
        for name, one, last in (("short only", alone, None), ("mixed", mixed, ratio)):
            p99 = one.short_ms["p99"], one.all_ms["p99"]
            row = name, one.capacity, one.rate, one.busy_share, one.short_ms["p50"], *p99, last
            rows.append(row)
    print_table(
        [
            ("", TEXT), ("capacity", ".0f"), ("requests/s", ".0f"), ("core", ".0%"), ("p50", ".2f"),
            ("p99", ".2f"), ("p99 of all", ".2f"), ("ratio", ".2f"),
        ],
        rows,
    )  # fmt: skip
    OUT.print(
        f"\nms of requests with at most {short} ids, {found.short_share:.0%} of the mixed ones\n"
        f"median of the p99's ratio: {found.over_short_only('p99'):.2f}",
        highlight=False,
        soft_wrap=True,
    )


def _print_users(found: CacheMeasurement) -> None:
    print_table(
        [("", TEXT), ("CPU ms a request", ".2f"), ("p50 ms", ".2f"), ("p99 ms", ".2f")],
        (
            (name, one.cpu_ms, one.p50_ms, one.p99_ms)
            for name, one in (("no cache", found.plain), ("cache", found.cached))
        ),
    )
    OUT.print(
        f"\n{found.rate:.0f} requests/s, {found.hit_rate:.0%} hits, {found.saved:.0%} of the "
        f"processor time saved\n{found.compared} answers of hits equal those without, to the bit",
        highlight=False,
        soft_wrap=True,
    )
