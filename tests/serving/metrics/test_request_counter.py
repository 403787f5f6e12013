"""Counting answered requests: compiled code writes the cells that their sums say."""

import numpy as np
import pytest

from serving.metrics.cells import MetricCells
from serving.metrics.families.all_families import VERSION_FAMILIES
from serving.metrics.families.family import Detail, FamilyBlock
from serving.metrics.families.request_families import (
    LATENCY_BOUNDARIES,
    PHASE_SECONDS,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    REQUESTS,
    SAMPLES,
)
from serving.metrics.request_counter import AnsweredCounter
from serving.metrics.version_info import latency_boundaries
from tests.support.answered_requests import Answered, count_cells


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


def counted(detail: Detail, objective: float) -> list[float]:
    cells = MetricCells(1)
    first = cells.allocate(sum(family.cells for family in VERSION_FAMILIES))
    block = FamilyBlock(VERSION_FAMILIES, ("ranker", "7"), first)
    counter = AnsweredCounter(
        cells,
        block,
        worker_requests=cells.allocate(1),
        last_request=cells.allocate(1),
        detail=detail,
    )
    counter.describe(latency_boundaries(objective), ())
    cells.use(0)
    requests = requests_by_chance()
    for request in requests[:100]:
        count_cells(counter.addresses, [request], 1.0)
    for start in range(100, len(requests), 7):
        count_cells(counter.addresses, requests[start : start + 7], 2.0)
    return [*cells.rows()[0]]


@pytest.mark.parametrize("detail", list(Detail))
@pytest.mark.parametrize("objective", [0.033, 0.06, 25.0])
def test_every_cell_is_the_sum_over_the_requests(detail: Detail, objective: float) -> None:
    cells = counted(detail, objective)
    requests = requests_by_chance()
    block = FamilyBlock(VERSION_FAMILIES, (), 0)
    phases = [(PHASE_SECONDS, phase) for phase in ("lookup", "tower", "encode")]
    timed = [(PHASE_SECONDS, "decode"), (QUEUE_SECONDS, None), *phases, (REQUEST_SECONDS, None)]
    for place, (family, label) in enumerate(timed, 1):
        first = block.cell(family, label)
        last = first + family.buckets
        times = [request[place] for request in requests]
        assert cells[last] == pytest.approx(sum(times))
        edges = latency_boundaries(objective if family is REQUEST_SECONDS else 0.0)
        buckets = np.bincount(np.searchsorted(edges, times), minlength=last - first).tolist()
        assert cells[first:last] == (buckets if detail is not Detail.OFF else [0.0] * len(buckets))
    assert cells[block.cell(REQUESTS, "OK")] == len(requests)
    assert cells[block.cell(SAMPLES)] == sum(request[0] for request in requests)


def test_an_objective_that_is_everybodys_boundary_adds_none() -> None:
    assert latency_boundaries(0.06) == latency_boundaries(0.0) == LATENCY_BOUNDARIES
    assert len(latency_boundaries(0.033)) == len(LATENCY_BOUNDARIES) + 1
    assert latency_boundaries(600.0)[-1] == 600.0
