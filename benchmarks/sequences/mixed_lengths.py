"""Latency of requests with short histories, with long ones beside them and without."""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.sequences.sequence_traffic import SequenceTraffic, lognormal_lengths
from serving.bench.servers.serve import (
    Loading,
    ServeFigures,
    measure_closed,
    measure_open,
    percentiles_ms,
)
from serving.bench.servers.server_under_test import ServerUnderTest, servers_of
from serving.bench.turns import Turns
from serving.commands.bench.report import TEXT, Report
from sharded_infer.errors import InputError, ShardedInferError

SHORT, MIXED = "short", "mixed"
_MESSAGES = 2048
# Requests in flight that keep a server busy all the time.
_BUSY = 16
# First seed of trials.
_TRIALS = 1000


def measure_mixed_lengths(
    traffic: SequenceTraffic,
    *,
    shortest: int,
    longest: int,
    short: int,
    share: float,
    options: Sequence[str],
    turns: Turns,
) -> Report:
    """Publish the model and measure both servers at an approximate busy share of their cores.

    Lengths of histories are lognormal; those of at most `short` ids are short. A server is never
    sent more than the share of its capacity.
    """
    drawn = lognormal_lengths(_MESSAGES, shortest=shortest, longest=longest)
    own = {SHORT: drawn[drawn <= short], MIXED: drawn}
    if not len(own[SHORT]):
        raise InputError(
            f"short histories: none of {shortest} to {longest} ids has at most {short}"
        )
    loads = {
        name: Loading(traffic.of_lengths(lengths.tolist()), traffic.candidates)
        for name, lengths in own.items()
    }
    publish = partial(traffic.publish, progress=turns.progress)
    with servers_of(publish, dict.fromkeys(loads, options)) as servers:
        found = turns.of(
            {
                name: partial(
                    _round, servers[name], loads[name], own[name] <= short, share, turns.seconds
                )
                for name in loads
            },
            "lengths",
        )
    rows = []
    ratios: dict[str, list[float]] = {"p50": [], "p99": []}
    for alone, mixed in zip(found[SHORT], found[MIXED], strict=True):
        for percentile, of_rounds in ratios.items():
            of_rounds.append(mixed["short_ms"][percentile] / alone["short_ms"][percentile])
        for name, one, ratio in (("short only", alone, None), ("mixed", mixed, ratios["p99"][-1])):
            of_short, p99_of_all = one["short_ms"], one["all_ms"]["p99"]
            rates = one["capacity"], one["rate"], one["busy_share"]
            rows.append((name, *rates, of_short["p50"], of_short["p99"], p99_of_all, ratio))
    short_share = len(own[SHORT]) / len(drawn)
    return Report(
        [
            ("", TEXT), ("capacity", ".0f"), ("requests/s", ".0f"), ("core", ".0%"), ("p50", ".2f"),
            ("p99", ".2f"), ("p99 of all", ".2f"), ("ratio", ".2f"),
        ],
        rows,
        [
            f"\nms of requests with at most {short} ids, {short_share:.0%} of the mixed ones",
            f"median of the p99's ratio: {median(ratios['p99']):.2f}",
        ],
        {
            "short_p99_over_short_only": median(ratios["p99"]),
            "short_p50_over_short_only": median(ratios["p50"]),
            "shortest": shortest,
            "longest": longest,
            "short": found[SHORT],
            "mixed": found[MIXED],
            "short_share": short_share,
        },
    )  # fmt: skip


def _round(
    server: ServerUnderTest,
    loading: Loading,
    is_short: NDArray[np.bool_],
    share: float,
    seconds: float,
    seed: int,
) -> dict[str, Any]:
    """Requests a second in a closed loop and sent, busy share of a core, and latencies."""
    # Measured just before: the machine is not the same all day.
    closed, _ = measure_closed(server, loading, concurrency=_BUSY, seconds=seconds / 3)
    rate = closed.requests_per_second * share
    # At random times batches are smaller than in a closed loop, and cost more a request.
    tried, _ = measure_open(server, loading, rate=rate, seconds=seconds / 2, seed=seed + _TRIALS)
    rate *= min(1.0, share / _busy_share(tried))
    figures, result = measure_open(server, loading, rate=rate, seconds=seconds, seed=seed)
    if figures.errors:
        raise ShardedInferError(f"requests failed under load: {figures.errors}")
    return {
        "capacity": closed.requests_per_second,
        "rate": rate,
        "busy_share": _busy_share(figures),
        "short_ms": percentiles_ms(result.latency[is_short[result.message_index]]),
        "all_ms": figures.latency_ms,
    }


def _busy_share(figures: ServeFigures) -> float:
    return (figures.cpu_ms_per_request or 0.0) * figures.offered_per_second / 1e3
