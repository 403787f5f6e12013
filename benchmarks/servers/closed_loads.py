"""Closed loads on several servers in turns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from serving.bench.servers.serve import Loading, ServeFigures, measure_closed
from serving.bench.servers.server_under_test import ServerUnderTest
from serving.bench.turns import Turns
from sharded_infer.errors import ShardedInferError

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
    cpu_rounds: tuple[float, ...]


def closed_loads(
    servers: Mapping[tuple[str, str], ServerUnderTest],
    loads: Iterable[tuple[int, int]],
    loading: Callable[[tuple[str, str], int], Loading],
    turns: Turns,
) -> list[LoadCell]:
    """Measure servers, by name and variant, under loads of (pairs, requests in flight).

    A turn takes twice as long while nothing is answered: a processor without bf16 products takes
    seconds for a large batch.
    """
    cells = []
    for pairs, flying in loads:
        measured = turns.of(
            {
                key: partial(_answered, key, server, loading(key, pairs), flying, turns.seconds)
                for key, server in servers.items()
            },
            f"{pairs} pairs, {flying} in flight",
        )
        cells += [_cell(*key, pairs, flying, figures) for key, figures in measured.items()]
    return cells


def median_of(
    figures: Sequence[ServeFigures], value: Callable[[ServeFigures], float | None]
) -> float:
    """Median over the figures that have the value."""
    return median(found for one in figures if (found := value(one)) is not None)


def _answered(
    key: tuple[str, str],
    server: ServerUnderTest,
    loading: Loading,
    concurrency: int,
    seconds: float,
    round_number: int,
) -> ServeFigures:
    name = " ".join(key)
    while True:
        figures, _ = measure_closed(server, loading, concurrency=concurrency, seconds=seconds)
        if figures.errors:
            raise ShardedInferError(f"{name}: answered {figures.errors}")
        if figures.requests_per_second:
            return figures
        if seconds > _MOST_SECONDS:
            raise ShardedInferError(f"{name}: answered nothing in {seconds:g} s")
        seconds *= 2


def _cell(
    server: str, variant: str, pairs: int, concurrency: int, figures: list[ServeFigures]
) -> LoadCell:
    batched = all(one.mean_batch_requests is not None for one in figures)
    return LoadCell(
        server,
        variant,
        pairs,
        concurrency,
        requests_per_second=median_of(figures, lambda one: one.requests_per_second),
        p50_ms=median_of(figures, lambda one: one.latency_ms.get("p50")),
        p99_ms=median_of(figures, lambda one: one.latency_ms.get("p99")),
        cpu_ms=median_of(figures, lambda one: one.cpu_ms_per_request),
        mean_batch=median_of(figures, lambda one: one.mean_batch_requests) if batched else None,
        rounds=tuple(one.requests_per_second for one in figures),
        cpu_rounds=tuple(one.cpu_ms_per_request or 0.0 for one in figures),
    )
