"""Strict parser of W3C Trace Context headers.

https://www.w3.org/TR/trace-context/: traceparent is `00-<32 hex>-<16 hex>-<2 hex>`, tracestate a
list for vendors that is passed on unchanged. Malformed headers are ignored.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 0x01
# A client's header is stored for seconds, so only the length required by the specification.
_LONGEST_STATE = 512


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The client's span of a request: 128-bit trace id, 64-bit span id, and tracestate or empty."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str = ""


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Ids of a traced request, 128 and 64 bits; without a parent, the trace begins here."""

    trace_id: int
    span_id: int
    parent: TraceContext | None = None

    @property
    def trace_hex(self) -> str:
        """The trace id in hexadecimal."""
        return f"{self.trace_id:032x}"


def read_trace_context(metadata: Iterable[tuple[str, str | bytes]]) -> TraceContext | None:
    """The context in metadata with lower-case names; None if there is none, or it is malformed."""
    parents: list[str] = []
    states: list[str] = []
    for name, value in metadata:
        if name == "traceparent":
            parents.append(_text(value))
        elif name == "tracestate":
            states.append(_text(value))
    if len(parents) != 1:
        return None
    return _parsed(parents[0].strip(), ",".join(states))


def _parsed(parent: str, state: str) -> TraceContext | None:
    match = _PARENT.fullmatch(parent)
    if match is None:
        return None
    version, trace, span, flags, rest = match.groups()
    # Later versions may append fields; 255 is invalid.
    if version == "ff" or (version == "00" and rest is not None):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id:
        return None
    sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(trace_id, span_id, sampled, state if len(state) <= _LONGEST_STATE else "")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
