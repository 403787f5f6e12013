"""Shard hosts as processes: their lookups, asked from here, the versions they hold, their pages."""

import signal
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving.protocol.lookups.version_key import version_key
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.hosts_file import HostSettings
from serving.remote_lookups.remote_hosts import RemoteHosts
from sharded_infer import Model, open_model
from sharded_infer.errors import ShardHostError
from sharded_infer.lookups.shard_hosts import Front
from sharded_infer.v1 import shard_host_pb2, shard_host_pb2_grpc
from tests.attacks.raw_http2 import PREFACE, SETTINGS, connect, frame
from tests.support.fronts import check, running_front, running_hosts
from tests.support.server_pages import fetch, samples
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    check_bits,
    good_inputs,
    publish_ranker,
    running_server,
)
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
HOST = ("host", "1")
GROUP = shard_host_pb2.LookupGroup(pieces=[0], lengths=b"\1", length_bytes=1, ids=b"\0", id_bytes=1)
VERSION = (HOST, ("model", MODEL), ("version", "1"))
TOKENS = "front-0123456789abcdef predict\nprometheus-0123456789 metrics\n"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_for_hosts(tmp_path_factory.mktemp("hosts"), HOSTS, RANK_BYTES)


@pytest.fixture(scope="module")
def hosts(
    published: Ranker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, ShardHostProcess]]:
    with running_hosts(published.repository, tmp_path_factory.mktemp("logs"), (0, 1, 2)) as running:
        yield running


def front_of(ranker: Ranker, addresses: dict[int, str]) -> Model:
    artifact = ranker.model.artifact
    listed = {number: (address,) for number, address in addresses.items()}
    clients = HostClients(HostSettings(listed, SECONDS), answer_bytes=2**20)
    remote = RemoteHosts(version_key(artifact.manifest), clients)
    return open_model(artifact.path, front=Front(remote))


def check_front(front: Model, ranker: Ranker, batch: int, seed: int = 0) -> None:
    inputs = good_inputs(batch, seed)
    check_bits(front.predict(inputs), ranker.predict(inputs))


def test_grpcs_own_client_is_answered(
    published: Ranker, hosts: dict[int, ShardHostProcess]
) -> None:
    with grpc.insecure_channel(hosts[1].address) as channel:
        stub = shard_host_pb2_grpc.ShardHostStub(channel)
        [held] = stub.Describe(shard_host_pb2.DescribeRequest(), timeout=SECONDS).versions
        key = version_key(published.model.artifact.manifest)
        assert (held.model, held.version, held.manifest, held.host) == (*key, 1)
        request = shard_host_pb2.LookupRequest(
            model=key.model, version=key.version, manifest=key.manifest, groups=[GROUP]
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


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"version": 9}, "NOT_FOUND", "it holds 1 version: 1"),
        ({"model": "other"}, "NOT_FOUND", "it holds 0 versions: none"),
        ({"manifest": 1}, "NOT_FOUND", "their manifests differ"),
        ({"groups": []}, "INVALID_ARGUMENT", "entries in all groups, got 0"),
    ],
)
def test_what_a_host_does_not_hold_is_refused_by_name_and_counted_by_code(
    published: Ranker,
    hosts: dict[int, ShardHostProcess],
    changes: dict[str, object],
    code: str,
    words: str,
) -> None:
    key = version_key(published.model.artifact.manifest)
    fields: dict[str, object] = {**key._asdict(), "groups": [GROUP], **changes}
    before = counts_of(hosts[1])
    with grpc.insecure_channel(hosts[1].address) as channel:
        stub = shard_host_pb2_grpc.ShardHostStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Lookup(shard_host_pb2.LookupRequest(**fields), timeout=SECONDS)  # type: ignore[arg-type]
    assert refused.value.code() is grpc.StatusCode[code]
    assert words in refused.value.details()
    assert grown(hosts[1], before)[f"lookups_total{code}"] == 1


def answers(front: Model) -> bool:
    try:
        front.predict(good_inputs(2))
    except ShardHostError:
        return False
    return True


def test_hosts_hold_the_two_newest_versions(tmp_path: Path) -> None:
    first = publish_for_hosts(tmp_path, HOSTS, RANK_BYTES)
    with running_hosts(first.repository, tmp_path, (0, 1, 2), "--poll-seconds", 0.1) as running:
        addresses = {number: host.address for number, host in running.items()}
        fronts = [(front_of(first, addresses), first)]
        for seed in (6, 7):
            newer = publish_for_hosts(tmp_path, HOSTS, RANK_BYTES, seed)
            front = front_of(newer, addresses)
            until(lambda: answers(front), "the new version is held")  # noqa: B023
            fronts.append((front, newer))
            for one, ranker in fronts[-2:]:
                check_front(one, ranker, 9, seed)
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


def test_a_host_that_no_plan_has_says_which_there_are_and_is_live_but_not_ready(
    published: Ranker, tmp_path: Path
) -> None:
    with running_shard_host(published.repository, 7, tmp_path / "log") as host:
        assert host.ready["versions"] == []
        assert "host 7 holds no rows, expected one of 0, 1, 2" in host.log.read_text()
        with grpc.insecure_channel(host.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            asked = health_pb2.HealthCheckRequest()
            assert health.Check(asked, timeout=SECONDS).status == 2
        assert answer_of(host, "/live")[0] == 200
        assert answer_of(host, "/ready") == (503, "loading\n")


@pytest.fixture(scope="module")
def front(
    published: Ranker, hosts: dict[int, ShardHostProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The first of two fronts; the other has two workers."""
    folder = tmp_path_factory.mktemp("fronts")
    with running_front(published.repository, folder, hosts) as one:
        named = ("--shard-hosts", folder / "hosts.toml", "--workers", 2)
        with running_server(published.repository, folder / "two", *named):
            yield one


def counts_of(host: ShardHostProcess) -> dict[str, float]:
    """The host's own metrics without labels of their own, and by code."""
    return {
        name.removeprefix("sharded_infer_host_") + dict(pairs).get("code", ""): value
        for (name, pairs), value in samples(host.ready["metrics_url"]).items()
        if name.startswith("sharded_infer_host_")
    }


def answer_of(host: ShardHostProcess, path: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return fetch(host.ready["metrics_url"].replace("/metrics", path), headers=headers)[:2]


def grown(host: ShardHostProcess, before: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in counts_of(host).items()}


def test_lookups_are_counted_with_their_rows_and_bytes(
    published: Ranker, hosts: dict[int, ShardHostProcess], front: RunningServer
) -> None:
    before = counts_of(hosts[1])
    for seed in range(5):
        check(front, published, 8, seed)
    more = grown(hosts[1], before)
    assert more["lookups_totalOK"] == more["lookup_seconds_count"] == 5
    assert more["rows_total"] > 5
    for name in ("row_bytes_total", "received_bytes_total", "sent_bytes_total"):
        assert more[name] > more["rows_total"], name
    assert more["lookup_seconds_sum"] > 0.0
    page = samples(hosts[1].ready["metrics_url"])
    assert all(HOST in pairs for name, pairs in page if name.startswith("sharded_infer_host_"))
    assert page["sharded_infer_workers", ()] == 1.0


@pytest.mark.usefixtures("front")
def test_versions_are_shown_with_their_bytes_and_the_fronts_that_serve_them(
    published: Ranker, hosts: dict[int, ShardHostProcess]
) -> None:
    url = hosts[1].ready["metrics_url"]
    held_bytes = samples(url)["sharded_infer_host_version_bytes", VERSION]
    assert held_bytes == published.model.rank_bytes[1]
    # Processes of one front count once.
    until(
        lambda: samples(url)["sharded_infer_host_version_leases", VERSION] == 2.0,
        "both fronts have said it",
    )


def test_metrics_and_probes_are_all_that_there_is(hosts: dict[int, ShardHostProcess]) -> None:
    assert answer_of(hosts[1], "/ready") == (200, "ready\n")
    assert answer_of(hosts[1], "/live") == (200, "live\n")
    for path in (f"/v2/models/{MODEL}/infer", "/v2", "/openapi.json", "/dashboard", "/api/live"):
        assert answer_of(hosts[1], path) == (404, "pages: / /metrics /ready /live\n"), path


def test_the_page_needs_a_token_where_fronts_do(published: Ranker, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    with running_shard_host(
        published.repository, 1, tmp_path / "host", "--tokens-file", tokens
    ) as host:
        assert answer_of(host, "/ready")[0] == 200
        assert answer_of(host, "/metrics")[0] == 401
        assert answer_of(host, "/metrics", "front-0123456789abcdef")[0] == 403
        status, page = answer_of(host, "/metrics", "prometheus-0123456789")
        assert status == 200 and "sharded_infer_host_lookups_total" in page


def test_a_host_ends_soon_though_clients_neither_read_nor_finish_a_handshake(
    published: Ranker, tmp_path: Path
) -> None:
    files = issue_files(tmp_path)
    seconds = []
    for attempt in range(3):
        log = tmp_path / f"log{attempt}"
        with (
            running_shard_host(published.repository, 1, log, *files.options()) as host,
            connect(host.address, opening=b""),
            connect(host.address, opening=b"") as idle,
            files.context("h2").wrap_socket(idle, server_hostname="localhost") as client,
        ):
            client.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
            client.recv(1)
            began = monotonic()
            host.process.send_signal(signal.SIGTERM)
            host.is_ending = True
            host.process.wait(SECONDS)
            seconds.append(monotonic() - began)
    # 0.4 s on an idle machine.
    assert min(seconds) < 1.5, seconds
