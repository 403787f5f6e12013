"""Which requests are traced: the decision alone, with OpenTelemetry's two rules.

parent-based     a request that says whether its trace is kept is believed
ratio            others are kept by the low 64 bits of their trace ids, so that every service that
                 keeps the same share keeps the same traces
"""

from collections.abc import Callable
from dataclasses import dataclass

from serving.trace_context import TraceContext

_LOW = 2**64 - 1
# Bits, from a generator: `random.Random().getrandbits`.
Draw = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """A request that is traced.

    Attributes:
        trace_id: of its trace, 128 bits.
        span_id: of the span that all others of the request are below.
        parent: the client's span; None: the trace begins here.
    """

    trace_id: int
    span_id: int
    parent: TraceContext | None = None

    @property
    def trace_hex(self) -> str:
        """The trace's id as people and other services write it."""
        return f"{self.trace_id:032x}"


@dataclass(frozen=True, slots=True)
class TraceSampling:
    """Which requests are traced.

    Attributes:
        ratio: the share that is, from 0 to 1.
        follows_parent: a request that comes with a trace is decided by its client.
    """

    ratio: float
    follows_parent: bool = True

    def decide(self, parent: TraceContext | None, draw: Draw) -> RequestTrace | None:
        """Whether a request is traced, and under which ids.

        Args:
            parent: the span that it was sent from, if it says one.
            draw: random bits.
        """
        if parent is None:
            trace_id = draw(128) or 1
            kept = self._keeps(trace_id)
        else:
            trace_id = parent.trace_id
            kept = parent.sampled if self.follows_parent else self._keeps(trace_id)
        # No id is zero.
        return RequestTrace(trace_id, draw(64) or 1, parent) if kept else None

    def _keeps(self, trace_id: int) -> bool:
        return (trace_id & _LOW) < round(self.ratio * 2**64)
