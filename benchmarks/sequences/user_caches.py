"""The same load of users, few of whom are frequent, on servers with a user cache and without."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks.sequences.sequence_traffic import SequenceTraffic, zipf_users
from benchmarks.servers.closed_loads import median_of
from serving.bench.load.cores import split_cpus
from serving.bench.load.generator import run_closed
from serving.bench.load.process import run_in_process
from serving.bench.servers.serve import (
    Loading,
    ServeFigures,
    measure_closed,
    measure_open,
)
from serving.bench.servers.server_under_test import ServerUnderTest, servers_of
from serving.bench.turns import in_turns
from serving.remote.scraped_metrics import scraped_samples
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress

CACHED, PLAIN = "cache", "no cache"
_BUSY = 16
# Users whose answers are compared, each in a separate request.
_COMPARED = 256
_USER_STATES = "sharded_infer_user_states_total"


@dataclass(frozen=True, slots=True)
class UserLoad:
    """Users drawn with Zipf frequencies, ids of each history, and the load of each server.

    The share is of the capacity without a cache; arrivals are random for `seconds` of a round.
    """

    users: int
    history: int
    cache_mib: int
    share: float
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """Medians of one server's rounds."""

    cpu_ms: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class CacheMeasurement:
    """Both servers under the same requests, and the number of hits that were compared."""

    rate: float
    hit_rate: float
    cached: CacheFigures
    plain: CacheFigures
    compared: int

    @property
    def saved(self) -> float:
        """Share of the server's processor time that the cache saves."""
        return 1.0 - self.cached.cpu_ms / self.plain.cpu_ms


def measure_user_cache(
    traffic: SequenceTraffic, load: UserLoad, options: Sequence[str], progress: Progress
) -> CacheMeasurement:
    """Publish the model in a temporary folder and measure both servers."""
    server_cpus, load_cpus = split_cpus()
    publish = partial(traffic.model.publish, traffic.spec, progress=progress)
    sizes = {CACHED: load.cache_mib, PLAIN: 0}
    words = {name: [f"--user-cache-mib={mib}", *options] for name, mib in sizes.items()}
    with servers_of(publish, words, server_cpus) as servers:

        def loading(count: int, seed: int) -> Loading:
            users = zipf_users(count, load.users, seed).tolist()
            messages = traffic.of_users(users, load.history, seed)
            return Loading(messages, traffic.candidates, cpus=load_cpus)

        first = loading(_COMPARED, 0)
        closed, _ = measure_closed(
            servers[PLAIN], first, concurrency=_BUSY, seconds=load.seconds / 2
        )
        rate = closed.requests_per_second * load.share
        # Each round's requests are new; the first fills the cache, and is not counted.
        count = round(rate * load.seconds * 1.2)
        found: dict[str, list[ServeFigures]] = {CACHED: [], PLAIN: []}
        before = (0, 0)
        for done, name in enumerate(in_turns(list(servers), load.rounds + 1)):
            number = done // 2
            if done == 2:
                before = _user_states(servers[CACHED], traffic.spec.name)
            figures, _ = measure_open(
                servers[name],
                loading(count, 1 + number),
                rate=rate,
                seconds=load.seconds,
                poisson=True,
                seed=number,
            )
            if figures.errors:
                raise ShardedInferError(f"requests failed under load: {figures.errors}")
            if number:
                found[name].append(figures)
            progress("user cache", done + 1, 2 * load.rounds + 2)
        hits, misses = np.subtract(_user_states(servers[CACHED], traffic.spec.name), before)
        compared = _compare(servers, traffic, load)
    return CacheMeasurement(
        rate=rate,
        hit_rate=float(hits / max(1, hits + misses)),
        cached=_medians(found[CACHED]),
        plain=_medians(found[PLAIN]),
        compared=compared,
    )


def _compare(servers: dict[str, ServerUnderTest], traffic: SequenceTraffic, load: UserLoad) -> int:
    """Send requests of some users to both, twice to the cache; the second time all are hits."""
    users = range(min(_COMPARED, load.users))
    messages = tuple(traffic.of_users(users, load.history, 0))

    def scores(name: str) -> list[bytes]:
        asked = partial(
            run_closed,
            servers[name].target,
            messages,
            connections=1,
            concurrency=1,
            seconds=60.0,
            max_calls=len(messages),
        )
        responses = run_in_process(asked, None).responses
        if len(responses) != len(messages):
            raise ShardedInferError(f"{len(responses)} of {len(messages)} requests were answered")
        return [_scores_of(responses[number]) for number in range(len(messages))]

    expected = scores(PLAIN)
    scores(CACHED)
    hits, misses = _user_states(servers[CACHED], traffic.spec.name)
    again = scores(CACHED)
    hits_then, misses_then = _user_states(servers[CACHED], traffic.spec.name)
    if (hits_then - hits, misses_then - misses) != (len(messages), 0):
        raise ShardedInferError(
            f"{len(messages)} users were asked for again: expected as many hits, counted "
            f"{hits_then - hits} hits and {misses_then - misses} misses; the cache is too small"
        )
    differing = sum(one != other for one, other in zip(expected, again, strict=True))
    if differing:
        raise ShardedInferError(f"{differing} of {len(messages)} answers of hits have other bits")
    return len(messages)


def _scores_of(response: bytes) -> bytes:
    return b"".join(service_pb2.ModelInferResponse.FromString(response).raw_output_contents)


def _user_states(server: ServerUnderTest, model: str) -> tuple[int, int]:
    counted = {"hit": 0, "miss": 0}
    for sample in scraped_samples(server.metrics_url or "", server.caller):
        if sample.name == _USER_STATES and sample.labels["model"] == model:
            counted[sample.labels["result"]] += int(sample.value)
    return counted["hit"], counted["miss"]


def _medians(figures: Sequence[ServeFigures]) -> CacheFigures:
    return CacheFigures(
        cpu_ms=median_of(figures, lambda one: one.cpu_ms_per_request),
        p50_ms=median(one.latency_ms["p50"] for one in figures),
        p99_ms=median(one.latency_ms["p99"] for one in figures),
    )
