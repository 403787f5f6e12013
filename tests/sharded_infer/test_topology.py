"""Topologies as they are written."""

import pytest

from sharded_infer.errors import PlanError
from sharded_infer.topology import Device, Topology, parse_topology


@pytest.mark.parametrize(
    ("text", "memories"),
    [
        ("cpu", [None]),
        ("cpu:1", [None]),
        ("cpu:3", [None] * 3),
        ("cpu:2x16GB", [16 * 1000**3] * 2),
        ("cpu:1x1.5GiB", [3 * 2**29]),
        ("cpux2KB", [2000]),
        ("cpu:1x1KiB+cpu:2x1MB", [1024, 10**6, 10**6]),
        ("cpu:1x1TB + cpu", [10**12, None]),
    ],
)
def test_ranks_and_their_memory_are_read(text: str, memories: list[int | None]) -> None:
    assert parse_topology(text) == Topology(text, tuple(Device("cpu", m) for m in memories))


@pytest.mark.parametrize("text", ["", "cpu:", "2", "cpu:2x", "cpu:2x16", "cpu:-1", "cpu:2x16XB"])
def test_what_does_not_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(PlanError, match=f"topology {text!r}: .* such as cpu:2 or cpu:2x16GB"):
        parse_topology(text)


@pytest.mark.parametrize("text", ["cpu:2+", "cpu:1++cpu:1"])
def test_an_empty_part_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="'' is not KIND:COUNT"):
        parse_topology(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tpu:2", "unknown device kind 'tpu', expected one of cpu"),
        ("cpu:0", "0 ranks, expected 1 to 1024"),
        ("cpu:1025", "1025 ranks, expected 1 to 1024"),
        ("cpu:1x1.2.3GB", "'1.2.3' is not a size"),
        ("cpu:1x.GB", "'.' is not a size"),
    ],
)
def test_impossible_ranks_are_refused_by_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parse_topology(text)
