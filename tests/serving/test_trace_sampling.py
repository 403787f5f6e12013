"""Which requests are traced: the client's word, else the share."""

import random

import pytest

from serving.trace_context import TraceContext
from serving.trace_sampling import TraceSampling

DRAW = random.Random(7).getrandbits
TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_client_that_has_decided_is_believed(sampled: bool, ratio: float) -> None:
    parent = TraceContext(TRACE, 5, sampled)
    trace = TraceSampling(ratio).decide(parent, DRAW)
    assert (trace is not None) is sampled
    if trace is not None:
        assert trace.trace_id == TRACE and trace.parent is parent and trace.span_id not in (0, 5)


def test_the_share_of_the_others_is_kept() -> None:
    kept = sum(TraceSampling(0.1).decide(None, DRAW) is not None for _ in range(20_000))
    assert 1800 < kept < 2200


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (1.0, 1000)])
def test_none_and_all_are_exact(ratio: float, expected: int) -> None:
    kept = [TraceSampling(ratio).decide(None, DRAW) for _ in range(1000)]
    assert sum(trace is not None for trace in kept) == expected


def test_services_that_keep_the_same_share_keep_the_same_traces() -> None:
    sampling = TraceSampling(0.5, follows_parent=False)
    parents = [TraceContext(DRAW(128), 5, False) for _ in range(100)]
    first = [sampling.decide(parent, DRAW) is not None for parent in parents]
    again = [sampling.decide(parent, DRAW) is not None for parent in parents]
    low_half = [parent.trace_id & (2**64 - 1) < 2**63 for parent in parents]
    assert first == again == low_half and 20 < sum(first) < 80


def test_ids_are_never_zero() -> None:
    trace = TraceSampling(1.0).decide(None, lambda bits: 0)
    assert trace is not None and trace.trace_id and trace.span_id
