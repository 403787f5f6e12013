"""What a shard host says of itself over HTTP: its metrics, and whether it is ready."""

import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from sharded_infer.v1 import shard_host_pb2, shard_host_pb2_grpc
from tests.support.fronts import check, hosts_file
from tests.support.server_pages import samples
from tests.support.servers import MODEL, Ranker, RunningServer, running_server
from tests.support.shard_host_processes import (
    ShardHostProcess,
    publish_for_hosts,
    running_shard_host,
)
from tests.support.waiting import until

HOST = ("host", "1")
VERSION = (HOST, ("model", MODEL), ("version", "1"))
SECONDS = 60.0
TOKENS = "front-0123456789abcdef predict\nprometheus-0123456789 metrics\n"


@dataclass(frozen=True)
class Running:
    ranker: Ranker
    host: ShardHostProcess
    fronts: tuple[RunningServer, RunningServer]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("hosts")
    ranker = publish_for_hosts(folder, 2, 2000)
    with running_shard_host(ranker.repository, 1, folder / "host") as host:
        options = ("--shard-hosts", hosts_file(folder, {1: host}))
        with (
            running_server(ranker.repository, folder / "one", *options) as one,
            running_server(ranker.repository, folder / "two", *options, "--workers", 2) as two,
        ):
            yield Running(ranker, host, (one, two))


def counts_of(host: ShardHostProcess) -> dict[str, float]:
    """The host's own metrics without labels of their own, and by code."""
    return {
        name.removeprefix("sharded_infer_host_") + dict(pairs).get("code", ""): value
        for (name, pairs), value in samples(host.ready["metrics_url"]).items()
        if name.startswith("sharded_infer_host_")
    }


def answer_of(host: ShardHostProcess, path: str, token: str = "") -> tuple[int, str]:
    url = host.ready["metrics_url"].replace("/metrics", path)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        asked = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own http URL
        with urllib.request.urlopen(asked, timeout=10) as response:  # noqa: S310
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_lookups_are_counted_with_their_rows_and_bytes(running: Running) -> None:
    before = counts_of(running.host)
    for seed in range(5):
        check(running.fronts[0], running.ranker, 8, seed)
    counts = counts_of(running.host)
    grown = {name: value - before.get(name, 0.0) for name, value in counts.items()}
    assert grown["lookups_totalOK"] == grown["lookup_seconds_count"] == 5
    assert grown["rows_total"] > 5
    for name in ("row_bytes_total", "received_bytes_total", "sent_bytes_total"):
        assert grown[name] > grown["rows_total"], name
    assert grown["lookup_seconds_sum"] > 0.0
    page = samples(running.host.ready["metrics_url"])
    assert all(HOST in pairs for name, pairs in page if name.startswith("sharded_infer_host_"))
    assert page["sharded_infer_workers", ()] == 1.0


def test_lookups_that_are_refused_are_counted_by_code(running: Running) -> None:
    with grpc.insecure_channel(running.host.address) as channel:
        stub = shard_host_pb2_grpc.ShardHostStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.Lookup(shard_host_pb2.LookupRequest(model=MODEL, version=9), timeout=SECONDS)
    assert counts_of(running.host)["lookups_totalNOT_FOUND"] == 1.0


def test_versions_are_shown_with_their_bytes_and_the_fronts_that_serve_them(
    running: Running,
) -> None:
    url = running.host.ready["metrics_url"]
    held_bytes = samples(url)["sharded_infer_host_version_bytes", VERSION]
    assert held_bytes == running.ranker.model.rank_bytes[1]
    # Processes of one front count once.
    until(
        lambda: samples(url)["sharded_infer_host_version_leases", VERSION] == 2.0,
        "both fronts have said it",
    )


def test_metrics_and_probes_are_all_that_there_is(running: Running) -> None:
    assert answer_of(running.host, "/ready") == (200, "ready\n")
    assert answer_of(running.host, "/live") == (200, "live\n")
    for path in (f"/v2/models/{MODEL}/infer", "/v2", "/openapi.json", "/dashboard", "/api/live"):
        assert answer_of(running.host, path) == (404, "pages: / /metrics /ready /live\n"), path


def test_the_page_needs_a_token_where_fronts_do(tmp_path: Path) -> None:
    ranker = publish_for_hosts(tmp_path, 2, 2000)
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    with running_shard_host(
        ranker.repository, 1, tmp_path / "host", "--tokens-file", tokens
    ) as host:
        assert answer_of(host, "/ready")[0] == 200
        assert answer_of(host, "/metrics")[0] == 401
        assert answer_of(host, "/metrics", "front-0123456789abcdef")[0] == 403
        status, page = answer_of(host, "/metrics", "prometheus-0123456789")
        assert status == 200 and "sharded_infer_host_lookups_total" in page


def test_a_host_without_versions_is_live_and_not_ready(tmp_path: Path) -> None:
    ranker = publish_for_hosts(tmp_path, 2, 2000)
    with running_shard_host(ranker.repository, 5, tmp_path / "host") as host:
        assert answer_of(host, "/live")[0] == 200
        assert answer_of(host, "/ready") == (503, "loading\n")
        host.process.send_signal(signal.SIGTERM)
