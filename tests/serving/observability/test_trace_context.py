import pytest

from serving.observability.trace_context import TraceContext, read_trace_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_parent_is_read() -> None:
    read = read_trace_context([("user-agent", "x"), ("traceparent", GOOD), ("tracestate", "a=1")])
    assert read == TraceContext(int(TRACE, 16), int(SPAN, 16), True, "a=1")


@pytest.mark.parametrize(
    ("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("ff", True)]
)
def test_the_lowest_flag_says_whether_it_is_sampled(flags: str, sampled: bool) -> None:
    read = read_trace_context([("traceparent", f"00-{TRACE}-{SPAN}-{flags}")])
    assert read is not None and read.sampled is sampled


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "garbage",
        GOOD.upper(),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{GOOD}-more",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"{GOOD}\n{GOOD}",
        "\u0660" * 55,
    ],
)
def test_a_malformed_parent_counts_as_none(parent: str) -> None:
    assert read_trace_context([("traceparent", parent), ("tracestate", "a=1")]) is None


def test_what_other_clients_send_is_read() -> None:
    later = read_trace_context([("traceparent", f"01-{TRACE}-{SPAN}-01-what-comes-later")])
    assert later is not None and later.trace_id == int(TRACE, 16)
    assert read_trace_context([("traceparent", GOOD), ("traceparent", GOOD)]) is None
    metadata = [("tracestate", b"a=1"), ("traceparent", GOOD.encode()), ("tracestate", "b=2")]
    joined = read_trace_context(metadata)
    assert joined is not None and joined.state == "a=1,b=2"
    long = read_trace_context([("traceparent", GOOD), ("tracestate", "a=" + "1" * 600)])
    assert long is not None and long.state == ""
