import random

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")

from serving.observability.trace_context import RequestTrace
from serving.observability.trace_settings import TraceSampling
from serving.observability.tracer import Tracer

DRAW = random.Random(7).getrandbits
TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736


def decided(sampling: TraceSampling, *traceparents: str) -> list[RequestTrace | None]:
    """A tracer's decisions on requests with these headers; empty: the request has none."""
    tracer = Tracer(sampling, lambda requests: True)
    metadata = [[("traceparent", one)] if one else [] for one in traceparents]
    found = [tracer.begin(one) for one in metadata]
    tracer.stop()
    return found


def parent_of(trace_id: int, sampled: bool) -> str:
    return f"00-{trace_id:032x}-{5:016x}-{sampled:02x}"


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_client_that_has_decided_is_believed(sampled: bool, ratio: float) -> None:
    (trace,) = decided(TraceSampling(ratio), parent_of(TRACE, sampled))
    assert (trace is not None) is sampled
    if trace is not None:
        assert trace.trace_id == TRACE and trace.span_id not in (0, 5)
        assert trace.parent is not None and trace.parent.span_id == 5


def test_the_share_of_the_others_is_kept() -> None:
    traces = decided(TraceSampling(0.1), *[""] * 20_000)
    kept = [trace for trace in traces if trace is not None]
    assert 1750 < len(kept) < 2250
    assert len({trace.trace_id for trace in kept}) == len(kept)


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (1.0, 1000)])
def test_none_and_all_are_exact(ratio: float, expected: int) -> None:
    traces = decided(TraceSampling(ratio), *[""] * 1000)
    assert sum(trace is not None for trace in traces) == expected


def test_services_that_keep_the_same_share_keep_the_same_traces() -> None:
    sampling = TraceSampling(0.5, follows_parent=False)
    ids = [DRAW(128) for _ in range(100)]
    parents = [parent_of(trace_id, False) for trace_id in ids]
    first = [trace is not None for trace in decided(sampling, *parents)]
    again = [trace is not None for trace in decided(sampling, *parents)]
    low_half = [trace_id & (2**64 - 1) < 2**63 for trace_id in ids]
    assert first == again == low_half and 20 < sum(first) < 80
