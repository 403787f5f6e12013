import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from serving.bench.line_chart import COLOURS, latency_chart
from serving.bench.load.library import load_generator_refusal
from serving.bench.servers.serve import percentiles_ms
from serving.bench.servers.server_under_test import target_of
from serving.bench.workloads.named import WORKLOADS, workload_named
from serving.bench.workloads.workload import Workload, equal_tables
from serving.protocol.readers.input_reader import InputReader
from sharded_infer.errors import InputError
from tests.support.servers import Command

needs_generator = pytest.mark.skipif(
    load_generator_refusal() is not None, reason=str(load_generator_refusal())
)
SMALL = equal_tables("ranking", 3, 50, 4, 2, layers=(8,))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workload]:
    monkeypatch.setitem(WORKLOADS, "ranking", SMALL)
    return SMALL


def test_percentiles_are_those_of_the_latencies_to_three_digits() -> None:
    latencies = np.arange(1, 10_001) * 1e-5  # 10 µs to 100 ms
    found = percentiles_ms(latencies)
    assert found["p50"] == pytest.approx(50.0, rel=2e-3)
    assert found["p99"] == pytest.approx(99.0, rel=2e-3)
    assert found["p99.9"] == pytest.approx(99.9, rel=2e-3)
    assert found["max"] == pytest.approx(100.0)
    assert percentiles_ms(np.array([])) == {}


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_workloads_messages_are_requests_of_its_model(name: str) -> None:
    workload = workload_named(name)
    reader = InputReader(workload.spec(), max_batch=1024)
    first, second = workload.messages(5, 2)
    assert first != second
    model_input = reader.read_message(first)
    assert model_input.batch_size == 5
    features = sum(len(group.features) for group in model_input.groups)
    assert features == len(workload.spec().features)


def test_an_unknown_workload_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match=r"no workload is called 'x', expected one of ranking"):
        workload_named("x")


@pytest.mark.parametrize("address", ["localhost", ":80", "host:port"])
def test_an_address_without_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="expected host:port"):
        target_of(address)


def test_the_chart_is_svg_with_a_point_a_load_and_percentile() -> None:
    points = [(r, {"p50": 1.0, "p95": 2.0, "p99": r / 10}) for r in (10.0, 50.0, 90.0)]
    root = ElementTree.fromstring(  # noqa: S314 - our own picture
        latency_chart("a <title>", [*points, (99.0, {})], 95.0)
    )
    kinds = [element.tag.rpartition("}")[2] for element in root.iter()]
    lines = [element for element in root.iter() if element.get("stroke") in COLOURS]
    assert kinds.count("circle") == 9 and len(lines) == 3


@needs_generator
def test_bench_serve_writes_the_figures_of_a_closed_loop(
    sharded_infer: Command, small: Workload, tmp_path: Path
) -> None:
    target = tmp_path / "figures.json"
    done = sharded_infer(
        "bench", "serve", "--pairs", 3, "--concurrency", 4, "--duration", 0.5, "--json", target
    )
    assert done.code == 0 and "4 in flight" in done.out
    fields = json.loads(target.read_text())
    assert fields["requests_per_second"] > 0 and fields["errors"] == {}
    assert fields["pairs_per_second"] == pytest.approx(3 * fields["requests_per_second"])
    assert {"p50", "p95", "p99", "p99.9"} <= set(fields["latency_ms"])
    assert fields["cpu_ms_per_request"] > 0 and fields["mean_batch"] >= 3


@needs_generator
def test_bench_serve_sweeps_open_loops_and_draws_them(
    sharded_infer: Command, small: Workload, tmp_path: Path
) -> None:
    chart, target = tmp_path / "chart.svg", tmp_path / "figures.json"
    words = ["--sweep", "--duration", 0.3, "--chart", chart, "--json", target]
    done = sharded_infer("bench", "serve", "--distribution", "constant", *words)
    assert done.code == 0, done.err
    assert chart.read_text().startswith("<svg")
    fields = json.loads(target.read_text())
    rates = [load["offered_per_second"] for load in fields["loads"]]
    assert len(rates) == 8 and rates == sorted(rates)


@needs_generator
def test_bench_serve_measures_http_beside_grpc_in_turns(
    sharded_infer: Command, small: Workload, tmp_path: Path
) -> None:
    target = tmp_path / "figures.json"
    words = ["--transport", "http", "--concurrency", 2, "--duration", 0.9, "--json", target]
    done = sharded_infer("bench", "serve", *words)
    assert done.code == 0, done.err
    assert "times gRPC's, 2 in flight: median of 3 rounds" in done.out.replace("\n", " ")
    fields = json.loads(target.read_text())
    assert len(fields["grpc"]) == len(fields["http"]) == 3
    for figures in fields["grpc"] + fields["http"]:
        assert figures["requests_per_second"] > 0 and figures["errors"] == {}
    ratios = sorted(
        http["latency_ms"]["p50"] / grpc["latency_ms"]["p50"]
        for grpc, http in zip(fields["grpc"], fields["http"], strict=True)
    )
    assert fields["p50_ratio"] == pytest.approx(ratios[1])


@pytest.mark.parametrize(
    "option", [("--sweep",), ("--requests-per-second", 5), ("--deadline-ms", 5)]
)
def test_bench_serve_over_http_is_a_closed_loop(
    sharded_infer: Command, option: tuple[object, ...]
) -> None:
    done = sharded_infer("bench", "serve", "--transport", "http", *option)
    done.refused("--transport http", "closed loop")


def test_bench_serve_refuses_both_kinds_of_loop_at_once(sharded_infer: Command) -> None:
    done = sharded_infer("bench", "serve", "--requests-per-second", 5, "--concurrency", 2)
    done.refused("--requests-per-second", "--concurrency")
