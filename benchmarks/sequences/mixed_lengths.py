"""Latency of requests with short histories, with long ones beside them and without.

Two servers of one model on the same core take turns, each under random arrivals that keep the core
busy for about the same share of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.sequences.sequence_traffic import SequenceTraffic, lognormal_lengths
from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import (
    Loading,
    ServeFigures,
    measure_closed,
    measure_open,
    percentiles_ms,
)
from serving.bench.servers.server_under_test import ServerUnderTest, servers_of
from serving.bench.turns import in_turns
from sharded_infer.errors import InputError, ShardedInferError
from sharded_infer.progress import Progress

SHORT, MIXED = "short", "mixed"
_MESSAGES = 2048
# Requests in flight that keep a server busy all the time.
_BUSY = 16
# First seed of trials.
_TRIALS = 1000


@dataclass(frozen=True, slots=True)
class MixedLengths:
    """Lognormal lengths of histories between two bounds, and the limit of short ones."""

    shortest: int
    longest: int
    short: int


@dataclass(frozen=True, slots=True)
class LengthsRound:
    """Requests a second in a closed loop and sent, busy share of a core, and latencies."""

    capacity: float
    rate: float
    busy_share: float
    short_ms: dict[str, float]
    all_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class LengthsMeasurement:
    """Rounds of both servers, in the same order; `short_share` is of the mixed requests."""

    short: Sequence[LengthsRound]
    mixed: Sequence[LengthsRound]
    short_share: float

    def over_short_only(self, percentile: str) -> float:
        """A percentile of short histories beside long ones, over that without: median of rounds."""
        return median(
            mixed.short_ms[percentile] / short.short_ms[percentile]
            for short, mixed in zip(self.short, self.mixed, strict=True)
        )


def measure_mixed_lengths(
    traffic: SequenceTraffic,
    lengths: MixedLengths,
    *,
    share: float,
    rounds: int,
    seconds: float,
    options: Sequence[str],
    progress: Progress,
) -> LengthsMeasurement:
    """Publish the model and measure both servers at an approximate busy share of their cores.

    A server is never sent more than this share of its capacity.
    """
    server_cpus, load_cpus = split_cpus()
    drawn = lognormal_lengths(_MESSAGES, shortest=lengths.shortest, longest=lengths.longest)
    short = drawn[drawn <= lengths.short]
    if not len(short):
        raise InputError(
            f"short histories: none of {lengths.shortest} to {lengths.longest} ids has at most "
            f"{lengths.short}"
        )
    own = {SHORT: short, MIXED: drawn}
    loads = {
        name: Loading(traffic.of_lengths(ones.tolist()), traffic.candidates, cpus=load_cpus)
        for name, ones in own.items()
    }
    found: dict[str, list[LengthsRound]] = {SHORT: [], MIXED: []}
    publish = partial(traffic.model.publish, traffic.spec, progress=progress)
    with servers_of(publish, dict.fromkeys(loads, options), server_cpus) as servers:
        for done, name in enumerate(in_turns(list(loads), rounds)):
            one = _round(
                servers[name],
                loads[name],
                own[name] <= lengths.short,
                share=share,
                seconds=seconds,
                seed=done // 2,
            )
            found[name].append(one)
            progress("lengths", done + 1, 2 * rounds)
    return LengthsMeasurement(found[SHORT], found[MIXED], len(short) / len(drawn))


def _round(
    server: ServerUnderTest,
    loading: Loading,
    is_short: NDArray[np.bool_],
    *,
    share: float,
    seconds: float,
    seed: int,
) -> LengthsRound:
    # Measured just before: the machine is not the same all day.
    closed, _ = measure_closed(server, loading, concurrency=_BUSY, seconds=seconds / 3)
    rate = closed.requests_per_second * share
    # At random times batches are smaller than in a closed loop, and cost more a request.
    tried, _ = measure_open(
        server, loading, rate=rate, seconds=seconds / 2, poisson=True, seed=seed + _TRIALS
    )
    rate *= min(1.0, share / _busy_share(tried))
    figures, result = measure_open(
        server, loading, rate=rate, seconds=seconds, poisson=True, seed=seed
    )
    if figures.errors:
        raise ShardedInferError(f"requests failed under load: {figures.errors}")
    return LengthsRound(
        capacity=closed.requests_per_second,
        rate=rate,
        busy_share=_busy_share(figures),
        short_ms=percentiles_ms(result.latency[is_short[result.message_index]]),
        all_ms=figures.latency_ms,
    )


def _busy_share(figures: ServeFigures) -> float:
    return (figures.cpu_ms_per_request or 0.0) * figures.offered_per_second / 1e3
