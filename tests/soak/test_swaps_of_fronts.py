"""Version after version on a front and its shard hosts, whose answers come late by chance.

SHARDED_INFER_SOAK=1 makes it a thousand versions instead of six; `-s` shows the figures.
"""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.delayed_replica import DelayedReplica
from tests.support.servers import MODEL, good_inputs, running_server
from tests.support.shard_host_processes import publish_for_hosts, running_shard_host
from tests.support.traffic import BATCH, Publisher, Shelf, traffic
from tests.support.waiting import until

LONG = os.environ.get("SHARDED_INFER_SOAK") == "1"
SWAPS = 1000 if LONG else 6
HOSTS = 3
RANK_BYTES = 1400
# Rows of other scores: an answer from two of them is neither's.
RANKERS = 3
QUICK = ("--poll-seconds", 0.1)
pytestmark = pytest.mark.timeout(4 * 3600 if LONG else 300)


class HostsShelf(Shelf):
    """Rankers in turn, whose tables lie on several hosts."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        for number in range(RANKERS):
            folder = home / str(number)
            folder.mkdir(parents=True)
            made = publish_for_hosts(folder, HOSTS, RANK_BYTES, seed=100 + number)
            scores = made.predict(good_inputs(BATCH))["score"]
            self._made[number] = made.model.artifact.path, scores

    def ranker(self, number: int) -> tuple[Path, NDArray[np.float32]]:
        return self._made[number % RANKERS]


def by_a_few_milliseconds(random: Random) -> float:
    return random.random() * 0.02 if random.random() < 0.2 else 0.0


def late_hosts(repository: Path, folder: Path, stack: ExitStack) -> list[DelayedReplica]:
    """A shard host for each number, behind what delays its answers."""
    found = []
    for number in range(HOSTS):
        log = folder / f"host{number}"
        host = stack.enter_context(running_shard_host(repository, number, log, *QUICK))
        found.append(DelayedReplica(host.address, Random(number), by_a_few_milliseconds))
        stack.callback(found[-1].close)
    return found


def test_no_answer_mixes_versions_and_none_fails(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    (repository / MODEL).mkdir(parents=True)
    publisher = Publisher(repository, HostsShelf(tmp_path / "shelf"))
    publisher.good()
    with ExitStack() as stack:
        hosts = late_hosts(repository, tmp_path, stack)
        lines = [f'{number} = "{host.address}"' for number, host in enumerate(hosts)]
        named = tmp_path / "hosts.toml"
        named.write_text("\n".join(("timeout_ms = 60000", "[hosts]", *lines, "")))
        options = ("--shard-hosts", named, *QUICK)
        server = stack.enter_context(running_server(repository, tmp_path / "front", *options))
        seen = stack.enter_context(traffic(server))
        for _ in range(SWAPS):
            version = publisher.good()
            until(
                lambda: [a.version for a in seen.answers[-1:]] == [version],  # noqa: B023
                f"version {version} is served",
            )
            # What is served no longer, and not held by a front, is not needed.
            shutil.rmtree(repository / MODEL / str(version - 2), ignore_errors=True)
    answered = len(seen.answers) - len(seen.errors())
    print(  # noqa: T201 - what the long form is run by hand for
        f"\n{SWAPS} swaps, {answered} answers, {len(seen.errors())} failed, "
        f"{len(seen.wrong(publisher.expected))} of no version, "
        f"{sum(host.delays for host in hosts)} late by up to 20 ms"
    )
    assert seen.errors() == []
    assert seen.wrong(publisher.expected) == []
    assert seen.versions() == list(range(1, SWAPS + 2))
    assert all(host.delays for host in hosts)
