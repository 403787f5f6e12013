"""A front and shard hosts in network namespaces, whose links are cut and mended."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.support.marked_rows import MODEL, marked_inputs, publish_marked
from tests.support.marked_traffic import marked_traffic
from tests.support.namespaces import Network, network
from tests.support.servers import infer_request, running_server
from tests.support.shard_host_processes import end_all, running_shard_host
from tests.support.waiting import until

PORT = 8001
SECONDS = 60.0
# The namespaces of the replicas of each host, by its number in the plan.
Replicas = dict[int, list[int]]
# Longer than a lookup takes on the busiest machine.
LOOKUP_SECONDS = 5.0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cut") / "repository"
    publish_marked(made, 1)
    return made


@contextmanager
def running_front(
    net: Network, repository: Path, folder: Path, replicas: Replicas, more: str
) -> Iterator[str]:
    """A shard host in each namespace, and the address of their front."""
    with ExitStack() as stack, ThreadPoolExecutor(4) as starters:
        started = [
            running_shard_host(
                repository,
                number,
                folder / f"host{place}",
                *("--host", net.addresses[place], "--port", PORT, "--insecure"),
                program=net.host_program(place),
            )
            for number, places in replicas.items()
            for place in places
        ]
        stack.callback(end_all, list(starters.map(stack.enter_context, started)))
        lines = [
            f"{number} = {[f'{net.addresses[place]}:{PORT}' for place in places]}"
            for number, places in replicas.items()
        ]
        named, address = folder / "hosts.toml", folder / "front.socket"
        named.write_text("\n".join((more, "[hosts]", *lines, "")))
        options = ("--shard-hosts", named, "--unix-socket", address)
        program = net.front_program()
        with running_server(repository, folder / "front", *options, program=program):
            yield f"unix:{address}"


def test_a_cut_replica_costs_no_answer_and_is_asked_again_when_its_link_is_mended(
    repository: Path, tmp_path: Path
) -> None:
    # Longer than a request may take: a lookup that waits for a cut replica would fail it.
    more = f"timeout_ms = {2000 * SECONDS:.0f}"
    with (
        network(3) as net,
        running_front(net, repository, tmp_path, {0: [0], 1: [1, 2]}, more) as front,
        marked_traffic([front], deadline=SECONDS) as seen,
    ):
        # Latencies are known, and there is credit for hedges.
        seen.go_on(200)
        for place in (1, 2, 1):
            net.cut(place)
            seen.go_on(200)
            net.mend(place)
            seen.go_on(200)
    assert seen.errors == []
    assert seen.wrong == []


def status_of(front: str, seconds: float) -> tuple[str, str]:
    request = infer_request(marked_inputs(3, np.random.default_rng(0)), model=MODEL)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(front, options=options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            stub.ModelInfer(request, timeout=seconds)
        except grpc.RpcError as error:
            return error.code().name, error.details()
    return "OK", ""


def test_a_cut_host_is_named_within_the_lookups_time_and_asked_again_when_it_is_mended(
    repository: Path, tmp_path: Path
) -> None:
    more = f"timeout_ms = {1000 * LOOKUP_SECONDS:.0f}"
    with (
        network(2) as net,
        running_front(net, repository, tmp_path, {0: [0], 1: [1]}, more) as front,
    ):
        assert status_of(front, SECONDS) == ("OK", "")
        for _ in range(2):
            net.cut(1)
            # The client would wait for longer.
            code, words = status_of(front, SECONDS)
            assert code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
            assert f"shard host 1 at {net.addresses[1]}:{PORT}" in words
            net.mend(1)
            # Each thread of the front connects by itself.
            until(
                lambda: all(status_of(front, SECONDS)[0] == "OK" for _ in range(20)),
                "it is asked again",
            )
