"""Shard hosts as processes, asked by models of this process and by gRPC's own client."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving.errors import DeadlineError
from serving.protocol.lookups.lookup_messages import write_lookup
from serving.protocol.lookups.version_key import version_key
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.hosts_file import HostSettings
from serving.remote_lookups.remote_hosts import RemoteHosts
from serving.transport.client_settings import ClientTls
from sharded_infer import Model, open_model
from sharded_infer.errors import ShardHostError
from sharded_infer.lookups.shard_hosts import Front
from sharded_infer.v1 import shard_host_pb2, shard_host_pb2_grpc
from tests.support.fronts import running_hosts
from tests.support.servers import MODEL, Ranker, good_inputs, publish_ranker
from tests.support.shard_host_processes import (
    ShardHostProcess,
    publish_for_hosts,
    running_shard_host,
)
from tests.support.tls import issue_files
from tests.support.waiting import until

SECONDS = 60.0
# Host 0 is the front's; the item table is larger than any rank.
HOSTS = 3
RANK_BYTES = 1400
TOKEN = "front-0123456789abcdef"  # noqa: S105


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_for_hosts(tmp_path_factory.mktemp("hosts"), HOSTS, RANK_BYTES)


@pytest.fixture(scope="module")
def hosts(
    published: Ranker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, ShardHostProcess]]:
    with running_hosts(published, tmp_path_factory.mktemp("logs"), (0, 1, 2)) as running:
        yield running


def front_of(
    ranker: Ranker,
    addresses: dict[int, str],
    own: int | None = None,
    seconds: float = SECONDS,
    tls: ClientTls | None = None,
    token: str | None = None,
) -> Model:
    """The published model as a front opens it."""
    artifact = ranker.model.artifact
    listed = {number: (address,) for number, address in addresses.items()}
    clients = HostClients(HostSettings(listed, seconds, tls, token), answer_bytes=2**20)
    remote = RemoteHosts(version_key(artifact.manifest), clients)
    return open_model(artifact.path, front=Front(remote, own))


def addresses_of(hosts: dict[int, ShardHostProcess]) -> dict[int, str]:
    return {number: host.address for number, host in hosts.items()}


def check_bits(front: Model, ranker: Ranker, batch: int, seed: int = 0) -> None:
    inputs = good_inputs(batch, seed)
    found, expected = front.predict(inputs), ranker.predict(inputs)
    assert found.keys() == expected.keys()
    for name, scores in expected.items():
        np.testing.assert_array_equal(found[name], scores)


def test_the_plan_splits_a_table_over_hosts(published: Ranker) -> None:
    shards = published.model.plan.shards
    assert {shard.rank for shard in shards} == {0, 1, 2}
    assert len({shard.rank for shard in shards if shard.table == "item"}) > 1


@pytest.mark.parametrize("own", [0, None])
def test_scores_have_the_bits_of_the_same_plan_in_one_process(
    published: Ranker, hosts: dict[int, ShardHostProcess], own: int | None
) -> None:
    addresses = addresses_of(hosts)
    if own is not None:
        del addresses[own]
    front = front_of(published, addresses, own)
    for seed in range(20):
        check_bits(front, published, 1 + 7 * seed, seed)


def test_hosts_report_their_share(published: Ranker, hosts: dict[int, ShardHostProcess]) -> None:
    for number, host in hosts.items():
        [held] = host.ready["versions"]
        assert (held["model"], held["version"]) == (MODEL, 1)
        assert held["table_bytes"] == published.model.rank_bytes[number]
        assert host.ready["host_number"] == number


def test_grpcs_own_client_is_answered(
    published: Ranker, hosts: dict[int, ShardHostProcess]
) -> None:
    with grpc.insecure_channel(hosts[1].address) as channel:
        stub = shard_host_pb2_grpc.ShardHostStub(channel)
        [held] = stub.Describe(shard_host_pb2.DescribeRequest(), timeout=SECONDS).versions
        key = version_key(published.model.artifact.manifest)
        assert (held.model, held.version, held.manifest, held.host) == (*key, 1)
        group = shard_host_pb2.LookupGroup(
            pieces=[0], lengths=b"\1", length_bytes=1, ids=b"\0", id_bytes=1
        )
        request = shard_host_pb2.LookupRequest(
            model=key.model, version=key.version, manifest=key.manifest, groups=[group]
        )
        [sums] = stub.Lookup(request, timeout=SECONDS).sums
        assert np.isfinite(np.frombuffer(sums, "<f4")).all()
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "sharded_infer.v1.ShardHost"):
            asked = health_pb2.HealthCheckRequest(service=service)
            assert health.Check(asked, timeout=SECONDS).status == 1
        with pytest.raises(grpc.RpcError) as refused:
            health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=SECONDS)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


THIRDS = shard_host_pb2.LookupGroup(
    pieces=[0], lengths=b"\1", length_bytes=1, ids=b"\0", id_bytes=1, sum_bytes=3
)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"version": 9}, "NOT_FOUND", "it holds 1 version: 1"),
        ({"model": "other"}, "NOT_FOUND", "it holds 0 versions: none"),
        ({"manifest": 1}, "NOT_FOUND", "their manifests differ"),
        ({"groups": []}, "INVALID_ARGUMENT", "entries in all groups, got 0"),
        (
            {"groups": [THIRDS]},
            "INVALID_ARGUMENT",
            "group 0: sums of 3 bytes each",
        ),
    ],
)
def test_what_a_host_does_not_hold_is_refused_by_name(
    published: Ranker,
    hosts: dict[int, ShardHostProcess],
    changes: dict[str, object],
    code: str,
    words: str,
) -> None:
    key = version_key(published.model.artifact.manifest)
    group = shard_host_pb2.LookupGroup(
        pieces=[0], lengths=b"\1", length_bytes=1, ids=b"\0", id_bytes=1
    )
    fields: dict[str, object] = {**key._asdict(), "groups": [group], **changes}
    with grpc.insecure_channel(hosts[1].address) as channel:
        stub = shard_host_pb2_grpc.ShardHostStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Lookup(shard_host_pb2.LookupRequest(**fields), timeout=SECONDS)  # type: ignore[arg-type]
    assert refused.value.code() is grpc.StatusCode[code]
    assert words in refused.value.details()


def test_random_messages_are_answered_or_refused_and_the_host_goes_on(
    published: Ranker, hosts: dict[int, ShardHostProcess]
) -> None:
    generator = np.random.default_rng(0)
    key = version_key(published.model.artifact.manifest)
    message = bytearray(write_lookup(key, []))
    message += shard_host_pb2.LookupRequest(
        groups=[
            shard_host_pb2.LookupGroup(
                pieces=[0, 1], lengths=bytes((2, 1)), length_bytes=1, ids=bytes(3), id_bytes=1
            )
        ]
    ).SerializeToString()
    allowed = {"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"}
    refused = set()
    with grpc.insecure_channel(hosts[1].address) as channel:
        call = channel.unary_unary("/sharded_infer.v1.ShardHost/Lookup")
        for _ in range(500):
            changed = bytearray(message)
            for place in generator.integers(0, len(message), 2):
                changed[place] = generator.integers(0, 256)
            try:
                call(bytes(changed), timeout=SECONDS)
            except grpc.RpcError as error:
                refused.add(error.code().name)
    assert refused <= allowed
    check_bits(front_of(published, addresses_of(hosts)), published, 5)


def test_a_host_that_ended_is_named_and_a_new_one_is_asked_again(
    published: Ranker, tmp_path: Path
) -> None:
    with running_hosts(published, tmp_path, (0, 1)) as others:
        with running_hosts(published, tmp_path, (2,)) as gone:
            addresses = addresses_of({**others, **gone})
            front = front_of(published, addresses)
            check_bits(front, published, 5)
        with pytest.raises(ShardHostError, match=f"shard host 2 at {addresses[2]}"):
            front.predict(good_inputs(5))
        port = addresses[2].rpartition(":")[2]
        with running_hosts(published, tmp_path, (2,), "--port", port):
            until(lambda: answers(front), "the new process is asked")
            check_bits(front, published, 6)


def answers(front: Model) -> bool:
    try:
        front.predict(good_inputs(2))
    except ShardHostError:
        return False
    return True


def is_stopped(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return all("State:\tT" in (thread / "status").read_text() for thread in threads)


def test_a_stopped_host_costs_no_more_than_the_lookups_time(
    published: Ranker, tmp_path: Path
) -> None:
    with running_hosts(published, tmp_path, (0, 1, 2)) as running:
        # Longer than a lookup takes on the busiest machine.
        front = front_of(published, addresses_of(running), seconds=5.0)
        until(lambda: answers(front), "all are connected")
        pid = running[1].process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            # Its threads stop when the first of them has seen the signal.
            until(lambda: is_stopped(pid), "it is stopped")
            with pytest.raises(DeadlineError, match="shard host 1 at"):
                front.predict(good_inputs(5))
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: answers(front), "it goes on")
        check_bits(front, published, 5)


def test_hosts_hold_the_two_newest_versions(tmp_path: Path) -> None:
    first = publish_for_hosts(tmp_path, HOSTS, RANK_BYTES)
    with running_hosts(first, tmp_path, (0, 1, 2), "--poll-seconds", 0.1) as running:
        addresses = addresses_of(running)
        fronts = [(front_of(first, addresses), first)]
        for seed in (6, 7):
            newer = publish_for_hosts(tmp_path, HOSTS, RANK_BYTES, seed)
            front = front_of(newer, addresses)
            until(lambda: answers(front), "the new version is held")  # noqa: B023
            fronts.append((front, newer))
            for one, ranker in fronts[-2:]:
                check_bits(one, ranker, 9, seed)
        gone = fronts[0][0]
        until(lambda: not answers(gone), "the oldest is let go")
        with pytest.raises(ShardHostError, match="version 1: this host does not hold it"):
            gone.predict(good_inputs(3))


def test_a_host_without_versions_serves_when_one_comes(tmp_path: Path) -> None:
    publish_ranker(tmp_path / "repository")
    with (
        running_shard_host(
            tmp_path / "repository", 1, tmp_path / "log", "--poll-seconds", 0.1
        ) as host,
        grpc.insecure_channel(host.address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        assert host.ready["versions"] == []
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS).status == 2
        publish_for_hosts(tmp_path, HOSTS, RANK_BYTES)
        until(
            lambda: health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS).status == 1,
            "the host says that it serves",
        )


def test_tls_and_tokens_are_asked_for(published: Ranker, tmp_path: Path) -> None:
    files = issue_files(tmp_path)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN} predict # front\n")
    tokens.chmod(0o600)
    options = (*files.options(), "--tls-client-ca", files.ca, "--tokens-file", tokens)
    mine = ClientTls(files.ca, files.certificate, files.key)
    with running_hosts(published, tmp_path, (0, 1, 2), *options) as running:
        addresses = addresses_of(running)
        check_bits(front_of(published, addresses, tls=mine, token=TOKEN), published, 9)
        wrong = (
            {"tls": mine},
            {"tls": mine, "token": "front-0123456789abcdeX"},
            {"tls": ClientTls(files.ca), "token": TOKEN},
            {"token": TOKEN},
        )
        for settings in wrong:
            with pytest.raises(ShardHostError):
                front_of(published, addresses, **settings).predict(good_inputs(2))


def test_a_host_that_no_plan_has_says_which_there_are(published: Ranker, tmp_path: Path) -> None:
    with running_shard_host(published.repository, 7, tmp_path / "log") as host:
        assert host.ready["versions"] == []
        assert "host 7 holds no rows, expected one of 0, 1, 2" in host.log.read_text()
        with grpc.insecure_channel(host.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            asked = health_pb2.HealthCheckRequest()
            assert health.Check(asked, timeout=SECONDS).status == 2


def test_a_repository_that_goes_away_and_comes_back_changes_nothing(
    published: Ranker, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(published.repository, repository)
    with running_shard_host(repository, 1, tmp_path / "log", "--poll-seconds", 0.05) as host:
        repository.rename(tmp_path / "away")
        words = "the repository cannot be followed now"
        until(lambda: words in host.log.read_text(), "it is said")
        with grpc.insecure_channel(host.address) as channel:
            stub = shard_host_pb2_grpc.ShardHostStub(channel)
            [held] = stub.Describe(shard_host_pb2.DescribeRequest(), timeout=SECONDS).versions
            assert held.version == 1
        (tmp_path / "away").rename(repository)
    assert "Traceback" not in host.log.read_text()
