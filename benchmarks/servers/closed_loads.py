"""Closed loads on several servers in turns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from serving.bench.servers.serve import Loading, ServeFigures, measure_closed
from serving.bench.servers.server_under_test import ServerUnderTest
from serving.bench.turns import in_turns
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress

# Of a load without any answer.
_MOST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LoadCell:
    """A server, such as one executor or precision, under one closed load; medians of the rounds.

    Processor time is the server's for a request. Batches are in requests, None without a metrics
    page; rounds in requests a second.
    """

    server: str
    variant: str
    pairs: int
    concurrency: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    mean_batch: float | None
    rounds: tuple[float, ...]


def closed_loads(
    servers: Mapping[tuple[str, str], ServerUnderTest],
    loads: Iterable[tuple[int, int]],
    loading: Callable[[tuple[str, str], int], Loading],
    *,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> list[LoadCell]:
    """Measure servers, by name and variant, under loads of (pairs, requests in flight).

    Each takes `seconds`, or twice as long without an answer.
    """
    cells = []
    for pairs, flying in loads:
        loadings = {key: loading(key, pairs) for key in servers}
        found: dict[tuple[str, str], list[ServeFigures]] = {key: [] for key in servers}
        for done, key in enumerate(in_turns(list(servers), rounds)):
            figures = measure_answered(
                " ".join(key), servers[key], loadings[key], concurrency=flying, seconds=seconds
            )
            found[key].append(figures)
            progress(f"{pairs} pairs, {flying} in flight", done + 1, rounds * len(servers))
        cells += [_cell(*key, pairs, flying, of_one) for key, of_one in found.items()]
    return cells


def measure_answered(
    name: str, server: ServerUnderTest, loading: Loading, *, concurrency: int, seconds: float
) -> ServeFigures:
    """Measure as `measure_closed`, but again for twice as long while nothing is answered.

    A processor without bf16 products takes seconds for a large batch.
    """
    while True:
        figures, _ = measure_closed(server, loading, concurrency=concurrency, seconds=seconds)
        if figures.errors:
            raise ShardedInferError(f"{name}: answered {figures.errors}")
        if figures.requests_per_second:
            return figures
        if seconds > _MOST_SECONDS:
            raise ShardedInferError(f"{name}: answered nothing in {seconds:g} s")
        seconds *= 2


def median_of(
    figures: Sequence[ServeFigures], value: Callable[[ServeFigures], float | None]
) -> float:
    """Median over the figures that have the value."""
    return median(found for one in figures if (found := value(one)) is not None)


def _cell(
    server: str, variant: str, pairs: int, concurrency: int, figures: list[ServeFigures]
) -> LoadCell:
    middle = partial(median_of, figures)
    batched = all(one.mean_batch_requests is not None for one in figures)
    return LoadCell(
        server,
        variant,
        pairs,
        concurrency,
        requests_per_second=middle(lambda one: one.requests_per_second),
        p50_ms=middle(lambda one: one.latency_ms.get("p50")),
        p99_ms=middle(lambda one: one.latency_ms.get("p99")),
        cpu_ms=middle(lambda one: one.cpu_ms_per_request),
        mean_batch=middle(lambda one: one.mean_batch_requests) if batched else None,
        rounds=tuple(one.requests_per_second for one in figures),
    )
