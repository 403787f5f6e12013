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


def test_a_later_version_may_say_more() -> None:
    read = read_trace_context([("traceparent", f"01-{TRACE}-{SPAN}-01-what-comes-later")])
    assert read is not None and read.trace_id == int(TRACE, 16)


def test_two_parents_are_none() -> None:
    assert read_trace_context([("traceparent", GOOD), ("traceparent", GOOD)]) is None


def test_states_are_joined_in_order_and_bytes_are_taken() -> None:
    metadata = [("tracestate", b"a=1"), ("traceparent", GOOD.encode()), ("tracestate", "b=2")]
    read = read_trace_context(metadata)
    assert read is not None and read.state == "a=1,b=2"


def test_a_state_that_is_too_long_is_left_out() -> None:
    read = read_trace_context([("traceparent", GOOD), ("tracestate", "a=" + "1" * 600)])
    assert read is not None and read.state == ""
