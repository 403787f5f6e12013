"""Users whose histories grow with each request, on servers with a user cache and without."""

from collections.abc import Sequence
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from benchmarks.sequences.sequence_traffic import SequenceTraffic, zipf_users
from benchmarks.sequences.user_caches import BUSY, CACHED, PLAIN, closed_parts, open_parts
from serving.bench.servers.serve import Loading, measure_closed
from serving.bench.servers.server_under_test import ServerUnderTest, servers_of
from serving.bench.turns import Parts, Turns, medians
from serving.bench.workloads.requests import request_message
from serving.commands.bench.report import TEXT, Report
from serving.remote.scraped_metrics import scraped_samples
from sharded_infer.client import Client
from sharded_infer.zoo.registry import AGE, HISTORY

GROWING, FULL, NEW = "growing", "growing, full load", "new users"
_MIX = np.uint64(0x9E3779B97F4A7C15)
# A history that is full loses as many items at once, so that the others keep their places.
ANCHOR = 64
# New items of a request.
_MOST_NEW = 3
_PREPARED_USERS = 300
# Requests in flight under full load.
_IN_FLIGHT = 64
# Largest ratio of throughput, with a cache to without, that the messages suffice for.
_MOST_GAIN = 8


class GrowingUsers:
    """Histories by user, each one to three items longer than the one before."""

    def __init__(self, traffic: SequenceTraffic, history: int, users: int) -> None:
        self._traffic, self._history, self._users = traffic, history, users
        self._lengths: dict[int, int] = {}
        self._new = users

    def inputs(self, user: int) -> dict[str, NDArray[np.generic]]:
        """The next request's history of a user, from `history` to `history + ANCHOR` items."""
        own = np.random.default_rng(user)
        before = self._lengths.get(user)
        if before is None:
            length = self._history + int(own.integers(0, ANCHOR))
        else:
            length = before + 1 + (before + user) % _MOST_NEW
        self._lengths[user] = length
        first = -(-max(0, length - self._history - ANCHOR) // ANCHOR) * ANCHOR
        items = np.arange(first, length, dtype=np.uint64)
        mixed = (items + np.uint64(user * 1_000_003)) * _MIX
        # With one product, items of two users would differ by a constant.
        mixed = (mixed ^ mixed >> np.uint64(32)) * _MIX
        rows = self._traffic.spec.tables[0].rows
        inputs: dict[str, NDArray[np.generic]] = {
            HISTORY: (mixed >> np.uint64(33)).astype(np.int64)[None] % rows
        }
        if self._traffic.spec.sequences[HISTORY].dense:
            # Seconds before a moment that is the same for all requests.
            inputs[AGE] = (1e7 - 300.0 * items.astype(np.float32))[None, :, None]
        return inputs

    def all(self) -> list[bytes]:
        """A request of each user."""
        return [self._message(user, user) for user in range(self._users)]

    def returning(self, count: int, seed: int) -> list[bytes]:
        """Requests of users drawn with Zipf frequencies."""
        drawn = zipf_users(count, self._users, seed).tolist()
        return [self._message(user, number) for number, user in enumerate(drawn)]

    def new(self, count: int) -> list[bytes]:
        """Requests of users who never came before."""
        self._new += count
        return [self._message(self._new - number, number) for number in range(count)]

    def unknown_user(self) -> int:
        """A user who never came before."""
        self._new += 1
        return self._new

    def _message(self, user: int, seed: int) -> bytes:
        inputs = self.inputs(user)
        inputs["candidate"] = self.candidates(seed)
        return request_message(self._traffic.spec.name, inputs)

    def candidates(self, seed: int) -> NDArray[np.int64]:
        """Candidates of a request."""
        rows = self._traffic.spec.tables[0].rows
        return np.random.default_rng(seed).integers(0, rows, self._traffic.candidates)


def measure_growing_users(
    traffic: SequenceTraffic,
    *,
    users: int,
    history: int,
    cache_mib: int,
    share: float,
    options: Sequence[str],
    turns: Turns,
) -> Report:
    """Publish the model and measure servers with a cache and without, under the same requests.

    Each user came once before. The share is of the capacity without a cache. Raises
    ShardedInferError if requests fail.
    """
    publish = partial(traffic.publish, progress=turns.progress)
    sizes = {CACHED: cache_mib, PLAIN: 0}
    words = {name: [f"--user-cache-mib={mib}", *options] for name, mib in sizes.items()}
    population = GrowingUsers(traffic, history, users)
    with servers_of(publish, words) as servers:
        trial = Loading(population.new(256), traffic.candidates)
        closed, _ = measure_closed(
            servers[PLAIN], trial, concurrency=BUSY, seconds=turns.seconds / 2
        )
        capacity = closed.requests_per_second
        rate = capacity * share
        counts = {FULL: round(capacity * turns.seconds * _MOST_GAIN)}
        count = round(rate * turns.seconds * 1.2)
        # Both servers get the same requests: those of a turn are made once.
        made: dict[tuple[str, int], Loading] = {}

        def loading(kind: str, number: int) -> Loading:
            if (kind, number) not in made:
                wanted = counts.get(kind, count)
                messages = (
                    population.new(wanted) if kind == NEW else population.returning(wanted, number)
                )
                made[kind, number] = Loading(messages, traffic.candidates)
            return made[kind, number]

        def measured(server: ServerUnderTest, kind: str, first: int, number: int) -> Parts:
            seed = first + number
            load, seconds = loading(kind, seed), turns.seconds
            if kind == FULL:
                return closed_parts(server, load, concurrency=_IN_FLIGHT, seconds=seconds)
            return open_parts(server, load, rate=rate, seconds=seconds, seed=seed)

        turns.progress("filling the cache", 0, users)
        everyone = Loading(population.all(), traffic.candidates)
        seconds = 1.0 + users / capacity
        measure_closed(servers[CACHED], everyone, concurrency=_IN_FLIGHT, seconds=seconds)
        found: dict[str, dict[str, list[Parts]]] = {}
        hit_rates: dict[str, float] = {}
        for first, kind in enumerate((GROWING, FULL, NEW)):
            before = _positions(servers[CACHED])
            found[kind] = turns.of(
                {
                    name: partial(measured, server, kind, 1000 * first)
                    for name, server in servers.items()
                },
                kind,
            )
            kept, computed = np.subtract(_positions(servers[CACHED]), before)
            hit_rates[kind] = float(kept / max(1, kept + computed))
        prepared = _prepared(population, servers, traffic.spec.name)
    parts = {
        (kind, name): medians(rounds[name])
        for kind, rounds in found.items()
        for name in (PLAIN, CACHED)
    }
    ratios = {
        kind: median(
            cached["cpu_ms"] / plain["cpu_ms"]
            for cached, plain in zip(rounds[CACHED], rounds[PLAIN], strict=True)
        )
        for kind, rounds in found.items()
    }
    return Report(
        [("", TEXT), ("CPU ms a request", ".3f"), ("p50 ms", ".2f"), ("p99 ms", ".2f")],
        [(f"{kind}, {name}", *figures.values()) for (kind, name), figures in parts.items()],
        [
            f"\n{rate:.0f} requests/s, or {_IN_FLIGHT} in flight under full load",
            *(
                f"{kind}: {ratios[kind]:.3f} times the processor time with a cache; "
                f"{hit_rates[kind]:.1%} of positions kept"
                for kind in found
            ),
            f"p50 of predict after prepare: {prepared[CACHED]:.3f} ms, {prepared[PLAIN]:.3f} ms "
            f"without: {prepared[CACHED] / prepared[PLAIN]:.3f} times",
        ],
        {
            "history": history,
            "users": users,
            "cache_mib": cache_mib,
            "rate": rate,
            "hit_rates": hit_rates,
            "cpu_ratios": ratios,
            "p50_ratio_prepared": prepared[CACHED] / prepared[PLAIN],
            "prepared_p50_ms": prepared,
            **{f"{kind} {name}": figures for (kind, name), figures in parts.items()},
        },
    )


def _prepared(
    population: GrowingUsers, servers: dict[str, ServerUnderTest], model: str
) -> dict[str, float]:
    """p50 of predict calls, ms, by server, one at a time, each after a prepare call if it can."""
    times: dict[str, list[float]] = {name: [] for name in servers}
    clients = {name: Client(server.target.authority) for name, server in servers.items()}
    for number in range(_PREPARED_USERS):
        user = population.inputs(population.unknown_user())
        candidates = {"candidate": population.candidates(number)}
        for name, client in clients.items():
            if name == CACHED:
                client.prepare(model, user=user, timeout_seconds=30)
            began = perf_counter()
            client.predict(model, user=user, candidates=candidates, timeout_seconds=30)
            times[name].append((perf_counter() - began) * 1e3)
    for client in clients.values():
        client.close()
    return {name: median(of_server) for name, of_server in times.items()}


def _positions(server: ServerUnderTest) -> tuple[int, int]:
    counts = {"kept": 0, "computed": 0}
    for sample in scraped_samples(server.metrics_url or "", server.caller):
        if sample.name == "sharded_infer_user_positions_total":
            counts[sample.labels["result"]] += int(sample.value)
    return counts["kept"], counts["computed"]
