"""Replicas of shard hosts, with processes that are killed, stopped and delayed."""

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from serving.remote_lookups.fronts import Fronts
from sharded_infer import open_model
from sharded_infer.errors import ShardHostError
from tests.support.fronts import (
    SECONDS,
    all_are_answered,
    check,
    code_of,
    hosts_file,
    running_front,
)
from tests.support.server_pages import counted, fetch
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    check_bits,
    good_inputs,
    infer_request,
)
from tests.support.shard_host_processes import (
    ShardHostProcess,
    publish_for_hosts,
    running_shard_host,
)
from tests.support.waiting import until

HOSTS = 2
RANK_BYTES = 2000
# Above what a request may take: a lookup that waits for a stopped replica fails its request.
LOOKUP_TIME = f"timeout_ms = {2000 * SECONDS:.0f}"

Hosts = dict[int, list[ShardHostProcess]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_for_hosts(tmp_path_factory.mktemp("replicas"), HOSTS, RANK_BYTES)


@contextmanager
def running_replica(
    ranker: Ranker, number: int, log: Path, *options: object
) -> Iterator[ShardHostProcess]:
    """One that may be killed and stopped."""
    with running_shard_host(ranker.repository, number, log, *options, exit_code=None) as host:
        yield host
        with suppress(ProcessLookupError):
            os.kill(host.process.pid, signal.SIGCONT)


@contextmanager
def running_pairs(ranker: Ranker, folder: Path) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield {
            number: [
                stack.enter_context(running_replica(ranker, number, folder / f"{number}.{one}"))
                for one in range(count)
            ]
            for number, count in ((0, 1), (1, 2))
        }


def test_a_killed_replica_costs_no_answer_and_its_successor_is_asked(
    published: Ranker, tmp_path: Path
) -> None:
    with (
        running_pairs(published, tmp_path) as hosts,
        running_front(published.repository, tmp_path, hosts, more=LOOKUP_TIME) as front,
        ThreadPoolExecutor(4) as clients,
    ):
        first, second = hosts[1]
        asked = [clients.submit(check, front, published, 3, seed) for seed in range(100)]
        asked[20].result(SECONDS)
        first.process.kill()
        asked += [clients.submit(check, front, published, 3, seed) for seed in range(200)]
        for done in asked:
            done.result(SECONDS)
        second.process.kill()
        code, words = code_of(front)
        assert code == "UNAVAILABLE"
        assert all(f"shard host 1 at {one.address}" in words for one in (first, second))
        # Before, a check may have found the first one dead, and no lookup. A killed process may
        # keep its connections until the lookup is late: then it is hedged.
        for names in ("retries_total hedges_total", "failures_total", "lookup_seconds_count"):
            until(lambda: shard_count(front, names) > 0, f"a count of {names}")  # noqa: B023
        port = first.address.rpartition(":")[2]
        with running_replica(published, 1, tmp_path / "again", "--port", port):
            # Each thread of the front connects by itself.
            until(lambda: all_are_answered(front), "the first is asked again")
            check(front, published, 3)


def test_a_replica_that_was_restarted_often_answers_once_the_other_is_silent(
    published: Ranker, tmp_path: Path
) -> None:
    with running_pairs(published, tmp_path) as hosts, ExitStack() as stack:
        first, second = hosts[1]
        front = stack.enter_context(running_front(published.repository, tmp_path, hosts))
        check(front, published, 3)
        port = second.address.rpartition(":")[2]
        for life in range(3):
            second.process.kill()
            second.process.wait()
            until(lambda: state_of(front, second) == "ejected", "it is known to be down")  # noqa: B023
            log = tmp_path / f"life {life}"
            started = running_replica(published, 1, log, "--port", port)
            second = stack.enter_context(started)
        # Its ejection goes on: that it answers checks is enough.
        until(lambda: is_leased(second), "the front has checked it")
        first.process.send_signal(signal.SIGSTOP)
        for seed in range(20):
            check(front, published, 3, seed)


def shard_count(front: RunningServer, names: str) -> float:
    told = [f"sharded_infer_shard_{name}" for name in names.split()]
    return sum(counted(front, name, host="1") for name in told)


def state_of(front: RunningServer, replica: ShardHostProcess) -> str:
    """The replica's state on the front's live page."""
    _, text, _ = fetch(f"{front.http_url}/api/live?since=0")
    replicas = [shown for host in json.loads(text)["hosts"] for shown in host["replicas"]]
    return next(shown["state"] for shown in replicas if shown["address"] == replica.address)


def is_leased(replica: ShardHostProcess) -> bool:
    _, text, _ = fetch(replica.ready["metrics_url"])
    leases = re.search(r"^sharded_infer_host_version_leases\{.*\} (\S+)$", text, re.MULTILINE)
    return leases is not None and float(leases[1]) > 0


def test_a_stopped_replica_costs_no_answer(published: Ranker, tmp_path: Path) -> None:
    with (
        running_pairs(published, tmp_path) as hosts,
        running_front(published.repository, tmp_path, hosts, more=LOOKUP_TIME) as front,
    ):
        # Latencies are known, and there is credit for hedges.
        for seed in range(300):
            check(front, published, 2, seed)
        for replica in hosts[1]:
            os.kill(replica.process.pid, signal.SIGSTOP)
            for seed in range(100):
                check(front, published, 2, seed)
            os.kill(replica.process.pid, signal.SIGCONT)
            for seed in range(100):
                check(front, published, 2, seed)


def test_a_stopped_host_costs_a_request_its_own_deadline_and_no_other_request(
    published: Ranker, tmp_path: Path
) -> None:
    with (
        running_pairs(published, tmp_path) as hosts,
        running_front(
            published.repository, tmp_path, {0: hosts[0], 1: hosts[1][:1]}, more=LOOKUP_TIME
        ) as front,
        ThreadPoolExecutor(1) as clients,
    ):
        check(front, published, 2)
        stopped = hosts[1][0]
        os.kill(stopped.process.pid, signal.SIGSTOP)
        # One: the other request must find a slot that waits for no lookup.
        patient = [clients.submit(check, front, published, 2)]
        # The client itself would wait for long.
        request = infer_request(good_inputs(2))
        request.parameters["timeout"].int64_param = 2_000_000
        with front.stub() as stub, pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request, timeout=SECONDS)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert f"shard host 1 at {stopped.address}" in refused.value.details()
        assert [repr(done.exception(0)) for done in patient if done.done()] == []
        os.kill(stopped.process.pid, signal.SIGCONT)
        for done in patient:
            done.result(SECONDS)


def test_the_hosts_file_is_read_anew_when_it_changes(published: Ranker, tmp_path: Path) -> None:
    with (
        running_pairs(published, tmp_path) as hosts,
        running_front(
            published.repository, tmp_path, {0: hosts[0], 1: hosts[1][:1]}, more=LOOKUP_TIME
        ) as front,
    ):
        check(front, published, 3)
        (tmp_path / "refused.toml").write_text("[hosts]\n1 = 5\n")
        (tmp_path / "refused.toml").replace(tmp_path / "hosts.toml")
        log = tmp_path / "front"
        until(lambda: "stay as they were" in log.read_text(), "it is refused")
        assert "hosts.1: expected an address" in log.read_text()
        check(front, published, 3)
        hosts_file(tmp_path, {0: hosts[0], 1: hosts[1][1:]}, LOOKUP_TIME)
        until(lambda: "read anew" in log.read_text(), "it is read")
        hosts[1][0].process.kill()
        for seed in range(30):
            check(front, published, 3, seed)
        assert log.read_text().count("stay as they were") == 1


def test_replicas_that_held_nothing_are_checked_before_a_request_fails(tmp_path: Path) -> None:
    first = publish_for_hosts(tmp_path, HOSTS, RANK_BYTES)
    # It reads the repository when it is told to.
    still = ("--poll-seconds", 0)
    with running_replica(first, 1, tmp_path / "late", *still) as late:
        second = publish_for_hosts(tmp_path, HOSTS, RANK_BYTES, seed=6)
        with (
            running_replica(second, 0, tmp_path / "other") as other,
            running_replica(second, 1, tmp_path / "early") as early,
        ):
            # It looks at its hosts now, and never again.
            file = hosts_file(tmp_path, {0: [other], 1: [early, late]}, LOOKUP_TIME)
            fronts, artifact = Fronts(file, answer_bytes=2**20), second.model.artifact
            front = open_model(artifact.path, front=fronts.front_of(artifact, second.model.plan))
            early.process.kill()
            with pytest.raises(ShardHostError) as refused:
                front.predict(good_inputs(3))
            assert f"shard host 1 at {early.address}" in str(refused.value)
            not_held = f"it does not hold model {MODEL!r} version 2"
            assert f"shard host 1 at {late.address}: {not_held}" in str(refused.value)
            late.process.send_signal(signal.SIGHUP)
            words = f"holds {MODEL} version 2"
            until(lambda: words in late.log.read_text(), "it is loaded")
            check_bits(front.predict(good_inputs(3)), second.predict(good_inputs(3)))
