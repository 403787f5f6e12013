"""Counting answered requests: compiled code and Python write the same cells."""

import numpy as np
import pytest

from serving.metrics.cells import MetricCells
from serving.metrics.families.all_families import VERSION_FAMILIES
from serving.metrics.families.family import Detail, FamilyBlock
from serving.metrics.families.request_families import LATENCY_BOUNDARIES, REQUEST_SECONDS
from serving.metrics.native_counter import COUNTER
from serving.metrics.request_counter import Answered, AnsweredCounter
from serving.metrics.version_info import latency_boundaries

needs_native = pytest.mark.skipif(COUNTER is None, reason="serving's native code is not built")


def requests_by_chance() -> list[Answered]:
    """Times of all sizes, and on, below and above every boundary."""
    generator = np.random.default_rng(11)
    edges = np.array(latency_boundaries(0.033))
    special = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 99), [0.0]])
    times = np.concatenate([special, 10.0 ** generator.uniform(-6, 2, 500)])
    return [
        (
            int(generator.integers(1, 500)),
            *generator.choice(times, 5).tolist(),
            float(whole),
            int(generator.integers(0, 3)),
        )
        for whole in times
    ]


def counted(native: bool, detail: Detail, objective: float) -> list[float]:
    """All cells after requests came one by one and in batches."""
    cells = MetricCells(1)
    first = cells.allocate(sum(family.cells for family in VERSION_FAMILIES))
    block = FamilyBlock(VERSION_FAMILIES, ("ranker", "7"), first)
    counter = AnsweredCounter(
        cells,
        block,
        worker_requests=cells.allocate(1),
        last_request=cells.allocate(1),
        detail=detail,
        native=native,
    )
    counter.set_boundaries(latency_boundaries(objective))
    cells.use(0)
    requests = requests_by_chance()
    for request in requests[:100]:
        counter.count([request], 1.0)
    for start in range(100, len(requests), 7):
        counter.count(requests[start : start + 7], 2.0)
    return [*cells.rows()[0]]


@needs_native
@pytest.mark.parametrize("detail", list(Detail))
@pytest.mark.parametrize("objective", [0.033, 0.06, 25.0])
def test_compiled_code_and_python_count_alike_to_the_bit(detail: Detail, objective: float) -> None:
    assert counted(True, detail, objective) == counted(False, detail, objective)


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_native)])
def test_an_objective_is_a_boundary_that_splits_exactly(native: bool) -> None:
    cells = counted(native, Detail.FULL, 0.033)
    first = FamilyBlock(VERSION_FAMILIES, (), 0).cell(REQUEST_SECONDS)
    buckets = cells[first : first + REQUEST_SECONDS.buckets]
    boundaries = latency_boundaries(0.033)
    within = sum(request[6] <= 0.033 for request in requests_by_chance())
    assert sum(buckets[: boundaries.index(0.033) + 1]) == within
    assert sum(buckets) == len(requests_by_chance())


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_native)])
def test_with_metrics_off_only_what_statistics_report_is_counted(native: bool) -> None:
    off, full = counted(native, Detail.OFF, 0.0), counted(native, Detail.FULL, 0.0)
    block = FamilyBlock(VERSION_FAMILIES, (), 0)
    first = block.cell(REQUEST_SECONDS)
    total = first + REQUEST_SECONDS.buckets
    assert off[total] == full[total] > 0
    assert not any(off[first:total]) and any(full[first:total])


def test_an_objective_that_is_everybodys_boundary_adds_none() -> None:
    assert latency_boundaries(0.06) == latency_boundaries(0.0) == LATENCY_BOUNDARIES
    assert len(latency_boundaries(0.033)) == len(LATENCY_BOUNDARIES) + 1
    assert latency_boundaries(600.0)[-1] == 600.0
