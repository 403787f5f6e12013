"""Delta after delta under constant traffic: each answer is of the version that it names.

SHARDED_INFER_SOAK=1 makes it a hundred chained deltas instead of eight; `-s` shows the figures.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from sharded_infer.publishing.deltas.compaction import compact
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.version_copy import copy_version
from tests.support.fronts import hosts_file
from tests.support.marked_rows import HOSTS, MODEL, MarkedDeltas, publish_marked
from tests.support.marked_traffic import MarkedTraffic, marked_traffic
from tests.support.s3_server import S3Server
from tests.support.server_processes import children_of, resident_bytes
from tests.support.servers import RunningServer, running_server
from tests.support.shard_host_processes import running_shard_host
from tests.support.waiting import until

LONG = os.environ.get("SHARDED_INFER_SOAK") == "1"
DELTAS = 100 if LONG else 8
QUICK = ("--poll-seconds", 0.1)
# Of what a server takes after its first swaps.
MOST_GROWTH = 1.05
pytestmark = pytest.mark.timeout(3600 if LONG else 300)


@contextmanager
def several_hosts(location: Path | str, folder: Path, stack: ExitStack) -> Iterator[RunningServer]:
    hosts = [
        stack.enter_context(running_shard_host(location, n, folder / f"host{n}", *QUICK))
        for n in range(HOSTS)
    ]
    # A busy machine is not what is tested.
    named = hosts_file(folder, dict(enumerate(hosts)), "timeout_ms = 60000")
    options = ("--shard-hosts", named, *QUICK)
    with running_server(location, folder / "front", *options) as server:
        yield server


@contextmanager
def one_process(location: Path | str, folder: Path, _: ExitStack) -> Iterator[RunningServer]:
    with running_server(location, folder / "log", "--workers", 2, *QUICK) as server:
        yield server


def is_served(seen: MarkedTraffic, version: int) -> Callable[[], bool]:
    return lambda: seen.versions[version] > 20


def memory_of(server: RunningServer) -> int:
    pids = [server.process.pid, *children_of(server.process.pid)]
    return sum(resident_bytes(pid) for pid in pids)


@pytest.mark.parametrize("store", ["folder", "s3"])
@pytest.mark.parametrize("serving", [one_process, several_hosts])
def test_chained_deltas_under_traffic(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    store: str,
    serving: Callable[[Path | str, Path, ExitStack], AbstractContextManager[RunningServer]],
) -> None:
    first = tmp_path / "first"
    publish_marked(first, 1)
    location: Path | str = first
    if store == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        location = request.getfixturevalue("s3_url")
        assert s3.keys(MODEL) == []
        copy_version(Repository(first), MODEL, 1, Repository(location))
    repository, deltas = Repository(location), MarkedDeltas(seed=len(store))
    memory = []
    with ExitStack() as stack:
        server = stack.enter_context(serving(location, tmp_path, stack))
        traffic = marked_traffic([server.grpc_url], expected=deltas.rows)
        seen = stack.enter_context(traffic)
        until(is_served(seen, 1), "version 1 is served")
        for version in range(2, DELTAS + 2):
            published = publish_delta(MODEL, deltas.changes(version), repository)
            assert published.version == version
            until(is_served(seen, version), f"version {version} is served")
            memory.append(memory_of(server))
        deltas.same(DELTAS + 2, DELTAS + 1)
        compacted = compact(repository, MODEL)
        until(is_served(seen, compacted.version), "the compacted version is served")
        memory.append(memory_of(server))
        last = compacted.version + 1
        publish_delta(MODEL, deltas.changes(last), repository)
        until(is_served(seen, last), f"version {last} is served")
    answered = sum(seen.versions.values())
    print(  # noqa: T201 - what the long form is run by hand for
        f"\n{store}, {serving.__name__}: {DELTAS} deltas, {answered} answers, "
        f"{len(seen.errors)} failed, {len(seen.wrong)} wrong, memory after the second "
        f"{memory[1] / 1e6:.0f} MB, before compaction {memory[-2] / 1e6:.0f} MB, after "
        f"{memory[-1] / 1e6:.0f} MB"
    )
    assert seen.errors == []
    assert seen.wrong == []
    assert sorted(seen.versions) == list(range(1, last + 1))
    assert memory[-1] <= MOST_GROWTH * memory[1]
