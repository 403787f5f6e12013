"""Traces of lookups: from a client's span through the front's to those of shard hosts."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")

from tests.end_to_end.test_tracing import METHOD, parent_of, trace_of
from tests.support.collector import SERVER, Collector, Span, running_collector
from tests.support.fronts import hosts_file
from tests.support.server_pages import samples
from tests.support.servers import (
    Ranker,
    RunningServer,
    check_bits,
    good_inputs,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.shard_host_processes import (
    ShardHostProcess,
    publish_for_hosts,
    running_shard_host,
)
from tests.support.waiting import until

LOOKUP = "sharded_infer.v1.ShardHost/Lookup"
CLIENT = 3
ERROR = 2


@dataclass(frozen=True)
class Traced:
    ranker: Ranker
    front: RunningServer
    replicas: tuple[ShardHostProcess, ShardHostProcess]
    collector: Collector

    def ask(self, number: int, *, sampled: bool = True) -> None:
        inputs = good_inputs(5, number)
        metadata = [("traceparent", parent_of(number, sampled))]
        with self.front.stub() as stub:
            found = scores_of(stub.ModelInfer(infer_request(inputs), metadata=metadata))
        check_bits(found, self.ranker.predict(inputs))

    def spans(self, number: int, name: str, count: int = 1) -> list[Span]:
        """Those of a trace, once as many have come."""

        def found() -> list[Span]:
            spans = list(self.collector.spans)
            return [one for one in spans if (one.trace_id, one.name) == (trace_of(number), name)]

        until(lambda: len(found()) >= count, f"{name} of trace {number}")
        return found()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    ranker = publish_for_hosts(folder, 2, 2000)
    with running_collector() as collector:
        options = ("--trace-endpoint", collector.url)
        with (
            running_shard_host(ranker.repository, 1, folder / "one", *options) as one,
            running_shard_host(ranker.repository, 1, folder / "two", *options) as two,
        ):
            hosts = ("--shard-hosts", hosts_file(folder, {1: (one, two)}))
            ratio = ("--trace-ratio", 0)
            with running_server(
                ranker.repository, folder / "front", *hosts, *options, *ratio
            ) as front:
                yield Traced(ranker, front, (one, two), collector)


def test_a_hosts_span_is_below_that_of_the_lookup_which_is_below_the_requests(
    traced: Traced,
) -> None:
    traced.ask(1)
    [asked], answers = traced.spans(1, "shard host 1"), traced.spans(1, LOOKUP)
    [lookup], [request] = traced.spans(1, "lookup"), traced.spans(1, METHOD)
    # Two replicas answer where the first is late.
    for answered in answers:
        assert answered.end > answered.start
        assert (answered.parent_id, answered.kind) == (asked.span_id, SERVER)
        assert answered.attributes["rpc.response.status_code"] == "OK"
        assert answered.resource["sharded_infer.host"] == 1
    assert asked.parent_id == lookup.span_id
    assert lookup.parent_id == request.span_id
    assert asked.kind == CLIENT
    assert request.start <= asked.start and asked.end <= request.end
    addresses = {replica.address for replica in traced.replicas}
    assert asked.attributes["sharded_infer.replica"] in addresses
    assert asked.attributes["sharded_infer.sent_bytes"] > 0
    assert asked.attributes["sharded_infer.received_bytes"] > 0
    numbers = {name: asked.attributes[f"sharded_infer.{name}"] for name in ("host", "version")}
    assert numbers == {"host": 1, "version": 1}
    assert asked.attributes["sharded_infer.hedges"] in (0, 1)
    assert asked.attributes["sharded_infer.retries"] == 0


def test_a_lookup_of_a_request_that_is_not_traced_has_no_span(traced: Traced) -> None:
    def answered() -> float:
        pages = (samples(replica.ready["metrics_url"]) for replica in traced.replicas)
        name = "sharded_infer_host_lookups_total"
        return sum(page[name, (("code", "OK"), ("host", "1"))] for page in pages)

    before = answered()
    traced.ask(2, sampled=False)
    # Both replicas may be asked.
    assert answered() in (before + 1, before + 2)
    # What came before it would have come by now.
    traced.ask(3)
    traced.spans(3, LOOKUP)
    assert not [one for one in traced.collector.spans if one.trace_id == trace_of(2)]


def test_a_lookup_that_failed_has_a_span_with_its_status(traced: Traced, tmp_path: Path) -> None:
    with running_shard_host(traced.ranker.repository, 0, tmp_path / "host") as only:
        hosts = {0: (only,), 1: traced.replicas}
        file = hosts_file(tmp_path, hosts, "timeout_ms = 60000")
        options = ("--shard-hosts", file, "--trace-ratio", 0)
        endpoint = ("--trace-endpoint", traced.collector.url)
        with running_server(
            traced.ranker.repository, tmp_path / "front", *options, *endpoint
        ) as front:
            os.kill(only.process.pid, signal.SIGSTOP)
            try:
                late = _refused(front, 301, 1_000_000)
            finally:
                os.kill(only.process.pid, signal.SIGCONT)
            only.process.send_signal(signal.SIGTERM)
            only.process.wait(60)
            lost = _refused(front, 302, 60_000_000)
    assert (late, lost) == ("DEADLINE_EXCEEDED", "UNAVAILABLE")
    for number, code in ((301, late), (302, lost)):
        [request], asked = traced.spans(number, METHOD), traced.spans(number, "shard host 0")[-1]
        assert asked.parent_id == request.span_id and asked.kind == CLIENT
        assert asked.status == request.status == ERROR
        assert asked.attributes["rpc.response.status_code"] == code
        assert asked.attributes["error.type"] == code
        assert asked.attributes["sharded_infer.replica"] == only.address
        assert asked.attributes["sharded_infer.received_bytes"] == 0
        assert asked.end > asked.start


def _refused(front: RunningServer, number: int, timeout_us: int) -> str:
    """The code of a traced request with a timeout of its own."""
    request = infer_request(good_inputs(5, number))
    request.parameters["timeout"].int64_param = timeout_us
    metadata = [("traceparent", parent_of(number, True))]
    with front.stub() as stub, pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(request, metadata=metadata, timeout=120)
    code: str = refused.value.code().name
    return code
