"""The same load of users, few of whom are frequent, on servers with a user cache and without."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.sequences.sequence_traffic import SequenceTraffic, zipf_users
from serving.bench.servers.serve import Loading, ServeFigures, measure_closed, measure_open
from serving.bench.servers.server_under_test import ServerUnderTest, servers_of
from serving.bench.turns import Parts, Turns, medians
from serving.commands.bench.report import TEXT, Report
from serving.remote.scraped_metrics import user_states
from sharded_infer.errors import ShardedInferError

CACHED, PLAIN = "cache", "no cache"
BUSY = 16
# Users whose answers are compared, each in a separate request.
_COMPARED = 256


def measure_user_cache(
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

    The share is of the capacity without a cache. Raises ShardedInferError if requests fail, or the
    answers of hits have other bits.
    """
    publish = partial(traffic.publish, progress=turns.progress)
    sizes = {CACHED: cache_mib, PLAIN: 0}
    words = {name: [f"--user-cache-mib={mib}", *options] for name, mib in sizes.items()}
    with servers_of(publish, words) as servers:

        def loading(count: int, seed: int) -> Loading:
            drawn = zipf_users(count, users, seed).tolist()
            messages = traffic.of_users(drawn, history, seed)
            return Loading(messages, traffic.candidates)

        closed, _ = measure_closed(
            servers[PLAIN], loading(_COMPARED, 0), concurrency=BUSY, seconds=turns.seconds / 2
        )
        rate = closed.requests_per_second * share
        count = round(rate * turns.seconds * 1.2)

        def measured(server: ServerUnderTest, first_seed: int, number: int) -> Parts:
            # Each round's requests are new.
            seed = first_seed + number
            load = loading(count, seed)
            return open_parts(server, load, rate=rate, seconds=turns.seconds, seed=seed)

        filling = {name: partial(measured, server, 1) for name, server in servers.items()}
        replace(turns, rounds=1).of(filling, "filling the cache")
        before = _user_states(servers[CACHED], traffic.spec.name)
        variants = {name: partial(measured, server, 2) for name, server in servers.items()}
        rounds = turns.of(variants, "user cache")
        hits, misses = np.subtract(_user_states(servers[CACHED], traffic.spec.name), before)
        messages = tuple(traffic.of_users(range(min(_COMPARED, users)), history, 0))
        _check_hits(servers, messages, traffic.spec.name)
    hit_rate = float(hits / max(1, hits + misses))
    cached, plain = medians(rounds[CACHED]), medians(rounds[PLAIN])
    saved = 1.0 - cached["cpu_ms"] / plain["cpu_ms"]
    return Report(
        [("", TEXT), ("CPU ms a request", ".2f"), ("p50 ms", ".2f"), ("p99 ms", ".2f")],
        [(PLAIN, *plain.values()), (CACHED, *cached.values())],
        [
            f"\n{rate:.0f} requests/s, {hit_rate:.0%} hits, {saved:.0%} of the processor time "
            "saved",
            f"{len(messages)} answers of hits equal those without, to the bit",
        ],
        {
            "history": history,
            "users": users,
            "cache_mib": cache_mib,
            "saved_share": saved,
            "rate": rate,
            "hit_rate": hit_rate,
            "cached": cached,
            "plain": plain,
            "compared": len(messages),
        },
    )


def open_parts(
    server: ServerUnderTest, load: Loading, *, rate: float, seconds: float, seed: int
) -> Parts:
    """Processor time a request and latencies of an open load, ms.

    Raises ShardedInferError if requests fail.
    """
    figures, _ = measure_open(server, load, rate=rate, seconds=seconds, seed=seed)
    return _parts(figures)


def closed_parts(
    server: ServerUnderTest, load: Loading, *, concurrency: int, seconds: float
) -> Parts:
    """Processor time a request and latencies with a number of requests in flight, ms.

    Raises ShardedInferError if requests fail.
    """
    figures, _ = measure_closed(server, load, concurrency=concurrency, seconds=seconds)
    return _parts(figures)


def _parts(figures: ServeFigures) -> Parts:
    if figures.errors:
        raise ShardedInferError(f"requests failed under load: {figures.errors}")
    return {
        "cpu_ms": figures.cpu_ms_per_request or 0.0,
        "p50_ms": figures.latency_ms["p50"],
        "p99_ms": figures.latency_ms["p99"],
    }


def _check_hits(servers: dict[str, ServerUnderTest], messages: Sequence[bytes], model: str) -> None:
    """Send requests to both servers, twice to the cache; all second answers are equal hits."""
    expected = _scores(servers[PLAIN], messages)
    _scores(servers[CACHED], messages)
    before = _user_states(servers[CACHED], model)
    again = _scores(servers[CACHED], messages)
    hits, misses = np.subtract(_user_states(servers[CACHED], model), before).tolist()
    if (hits, misses) != (len(messages), 0):
        raise ShardedInferError(
            f"{len(messages)} users were asked for again: expected as many hits, counted {hits} "
            f"hits and {misses} misses; the cache is too small"
        )
    differing = sum(one != other for one, other in zip(expected, again, strict=True))
    if differing:
        raise ShardedInferError(f"{differing} of {len(messages)} answers of hits have other bits")


def _scores(server: ServerUnderTest, messages: Sequence[bytes]) -> list[bytes]:
    """Bytes of the scores of each message, sent one after another."""
    requests = map(service_pb2.ModelInferRequest.FromString, messages)
    with grpc.insecure_channel(server.target.authority) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        return [b"".join(infer(one, timeout=60.0).raw_output_contents) for one in requests]


def _user_states(server: ServerUnderTest, model: str) -> tuple[int, int]:
    return user_states(server.metrics_url or "", model, server.caller)
