"""Version after version under constant traffic: each answer is of the version that it names."""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np
import pytest

from sharded_infer.publishing.deltas.compaction import compact
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.version_copy import copy_version
from tests.support.delayed_replica import DelayedReplica
from tests.support.marked_rows import HOSTS, MODEL, MarkedDeltas, marked_inputs, publish_marked
from tests.support.marked_traffic import MarkedTraffic, marked_traffic
from tests.support.replaceable import Replaceable
from tests.support.server_processes import children_of, free_port, resident_bytes
from tests.support.servers import RunningServer, infer_request, running_server
from tests.support.shard_host_processes import running_shard_host
from tests.support.waiting import until

LONG = os.environ.get("SHARDED_INFER_SOAK") == "1"
DELTAS = 100 if LONG else 8
KILLS = 50 if LONG else 3
QUICK = ("--poll-seconds", 0.1)
# Rows in memory, and all of them in files.
IN_MEMORY, IN_FILES = QUICK, (*QUICK, "--row-memory-mib", 0)
# Of what a server takes after its first swaps.
MOST_GROWTH = 1.05
# What gRPC's client says of a server that is gone, or not there yet.
GONE = re.compile("failed to connect|Connection reset|Socket closed|Broken pipe")
pytestmark = pytest.mark.timeout(3600 if LONG else 300)


@contextmanager
def several_hosts(
    location: Path | str, folder: Path, stack: ExitStack, own: Sequence[object]
) -> Iterator[RunningServer]:
    """A front, and shard hosts whose answers are late by chance."""
    replicas = []

    def milliseconds(random: Random) -> float:
        return random.random() * 0.02 if random.random() < 0.2 else 0.0

    for number in range(HOSTS):
        host = running_shard_host(location, number, folder / f"host{number}", *own)
        address = stack.enter_context(host).address
        replicas.append(DelayedReplica(address, Random(number), milliseconds))
        stack.callback(replicas[-1].close)
    lines = [f'{number} = "{replica.address}"' for number, replica in enumerate(replicas)]
    named = folder / "hosts.toml"
    # A busy machine is not what is tested.
    named.write_text("\n".join(("timeout_ms = 60000", "[hosts]", *lines, "")))
    with running_server(location, folder / "front", "--shard-hosts", named, *own) as server:
        yield server
    assert all(replica.delays for replica in replicas)


@contextmanager
def one_process(
    location: Path | str, folder: Path, _: ExitStack, own: Sequence[object]
) -> Iterator[RunningServer]:
    with running_server(location, folder / "log", "--workers", 2, *own) as server:
        yield server


def is_served(seen: MarkedTraffic, version: int) -> Callable[[], bool]:
    return lambda: seen.versions[version] > 20


def memory_of(server: RunningServer) -> int:
    pids = [server.process.pid, *children_of(server.process.pid)]
    return sum(resident_bytes(pid) for pid in pids)


@pytest.fixture
def marked(location: str, tmp_path: Path) -> Repository:
    """A folder, or a bucket, with version 1 of the marked rows."""
    publish_marked(tmp_path / "first", 1)
    copy_version(Repository(tmp_path / "first"), MODEL, 1, Repository(location))
    return Repository(location)


@pytest.mark.parametrize(
    ("location", "serving", "own"),
    [
        ("local", one_process, IN_MEMORY),
        ("s3", one_process, IN_FILES),
        ("s3", several_hosts, IN_MEMORY),
        ("local", several_hosts, IN_FILES),
    ],
    indirect=["location"],
    ids=["one-memory", "one-files-s3", "hosts-memory-s3", "hosts-files"],
)
def test_chained_deltas_under_traffic(
    marked: Repository,
    tmp_path: Path,
    serving: Callable[..., AbstractContextManager[RunningServer]],
    own: Sequence[object],
) -> None:
    deltas, memory = MarkedDeltas(seed=1), []
    with ExitStack() as stack:
        server = stack.enter_context(serving(marked.location, tmp_path, stack, own))
        traffic = marked_traffic([server.grpc_url], expected=deltas.rows)
        seen = stack.enter_context(traffic)
        until(is_served(seen, 1), "version 1 is served")
        for version in range(2, DELTAS + 2):
            published = publish_delta(MODEL, deltas.changes(version), marked)
            assert published.version == version
            until(is_served(seen, version), f"version {version} is served")
            memory.append(memory_of(server))
        deltas.same(DELTAS + 2, DELTAS + 1)
        compacted = compact(marked, MODEL)
        until(is_served(seen, compacted.version), "the compacted version is served")
        memory.append(memory_of(server))
        last = compacted.version + 1
        publish_delta(MODEL, deltas.changes(last), marked)
        until(is_served(seen, last), f"version {last} is served")
    assert seen.errors == []
    assert seen.wrong == []
    assert sorted(seen.versions) == list(range(1, last + 1))
    assert memory[-1] <= MOST_GROWTH * memory[1]


@pytest.mark.parametrize(
    ("location", "own"), [("local", IN_FILES), ("s3", IN_MEMORY)], indirect=["location"],
    ids=["files", "memory-s3"],
)  # fmt: skip
def test_killed_servers_recover(marked: Repository, tmp_path: Path, own: Sequence[object]) -> None:
    deltas, chance = MarkedDeltas(seed=2), Random(3)
    port = free_port()
    request = infer_request(marked_inputs(1, np.random.default_rng(0)), model=MODEL)

    def start(log: Path) -> AbstractContextManager[RunningServer]:
        options = ("--port", port, "--workers", 2, *own)
        return running_server(marked.location, log, *options, exit_code=None)

    with ExitStack() as stack:
        server = Replaceable("server", tmp_path / "server", start)
        stack.callback(server.close)
        publisher = stack.enter_context(ThreadPoolExecutor(1))
        traffic = marked_traffic([f"127.0.0.1:{port}"], expected=deltas.rows)
        seen = stack.enter_context(traffic)
        until(is_served(seen, 1), "version 1 is served")
        began = time.monotonic()
        publish_delta(MODEL, deltas.changes(2), marked)
        until(is_served(seen, 2), "version 2 is served")
        release_seconds = time.monotonic() - began
        for version in range(3, KILLS + 3):
            published = publisher.submit(publish_delta, MODEL, deltas.changes(version), marked)
            time.sleep(chance.uniform(0, 1.2 * release_seconds))
            newest = marked.versions(MODEL)[-1]
            server.kill_all()
            server.start()
            with server.running.stub() as stub:
                answer = stub.ModelInfer(request, timeout=60)
            assert int(answer.model_version) in (newest, version)
            assert published.result().version == version
            until(is_served(seen, version), f"version {version} is served")
            # Whole files of a cache are what their names say.
            for path in (tmp_path / "cache" / "files").glob("*"):
                assert path.suffix or sha256(path.read_bytes()).hexdigest() == path.name
        assert marked.is_remote == (tmp_path / "cache" / "files").is_dir()
    assert seen.errors == []
    assert seen.wrong == []
    assert sorted(seen.versions) == list(range(1, KILLS + 3))
    assert [words for words in seen.losses if not GONE.search(words)] == []
    logs = [log.read_text() for log in tmp_path.glob("server.*")]
    assert len(logs) == KILLS + 1
    assert [log for log in logs if "internal error" in log] == []
