"""Version after version under constant traffic: nothing fails, nothing is wrong, memory is flat.

SHARDED_INFER_SOAK=1 makes it thirty versions instead of six; `-s` shows the latencies.
"""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.s3_server import S3Server
from tests.support.server_pages import metric
from tests.support.server_processes import children_of, resident_bytes
from tests.support.servers import running_server
from tests.support.traffic import Publisher, Shelf, StorePublisher, client_of, states, traffic
from tests.support.waiting import until

LONG = os.environ.get("SHARDED_INFER_SOAK") == "1"
VERSIONS = 30 if LONG else 6
BREAKS = ("with_flipped_bit", "with_other_golden_scores", "beyond_memory")
# Of what a server of one process takes after its first swaps.
MOST_GROWTH = 1.05


def breaks_by_version(versions: int) -> dict[int, str]:
    """Which of the versions are broken, and how: three, never the first two, spread out."""
    places = np.linspace(2, versions - 2, len(BREAKS)).round().astype(int)
    return dict(zip(places.tolist(), BREAKS, strict=True))


@pytest.fixture
def store_publisher(s3: S3Server, shelf: Shelf, tmp_path: Path) -> Publisher:
    """An object store with version 1."""
    made = StorePublisher(tmp_path / "mirrored", shelf, s3, tmp_path.name)
    made.good()
    return made


@pytest.mark.parametrize(
    ("kind", "workers"), [("publisher", 1), ("publisher", 2), ("store_publisher", 2)]
)
def test_versions_come_under_constant_traffic(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, workers: int
) -> None:
    publisher: Publisher = request.getfixturevalue(kind)
    options = ("--poll-seconds", 0.1, "--workers", workers)
    broken = breaks_by_version(VERSIONS)
    loading: list[tuple[float, float]] = []
    memory: list[int] = []
    with (
        running_server(publisher.location, tmp_path / "log", *options) as server,
        client_of(server) as client,
        traffic(server) as seen,
    ):
        began = time.monotonic()
        for number in range(VERSIONS):
            # Some traffic while nothing is loaded.
            answered = len(seen.answers)
            until(lambda: len(seen.answers) > answered + 50, "traffic goes on")  # noqa: B023
            start = time.monotonic()
            version = getattr(publisher, broken.get(number, "good"))()
            # A version that nobody has looked into yet is unavailable too.
            done = ("UNAVAILABLE", "failed at") if number in broken else ("READY", "")

            def is_done(version: int = version, done: tuple[str, str] = done) -> bool:
                state, reason = states(client).get(version, ("", ""))
                return state == done[0] and reason.startswith(done[1])

            until(is_done, " ".join(done))
            loading.append((start, time.monotonic()))
            if number not in broken:
                until(lambda: version in seen.versions(), "traffic on it")  # noqa: B023
            pids = [server.process.pid, *children_of(server.process.pid)]
            memory.append(sum(resident_bytes(pid) for pid in pids))
        ended = time.monotonic()
        loads = metric(server, "version_loads_total")
        failures = metric(server, "version_load_failures_total")
    assert seen.errors() == []
    assert seen.wrong(publisher.expected) == []
    good = [1] + [n + 2 for n in range(VERSIONS) if n not in broken]
    assert seen.versions() == good
    assert loads == {"": len(good)}
    # What an object store hands out is compared while it comes.
    compared = "verify" if kind == "publisher" else "fetch"
    assert {k: v for k, v in failures.items() if v} == {compared: 1, "golden": 1, "memory": 1}
    # The first swaps fill caches, and the version before the last is there from then on.
    assert memory[-1] <= MOST_GROWTH * memory[1]
    edges = [began, *(t for span in loading for t in span), ended]
    quiet = list(zip(edges[::2], edges[1::2], strict=True))
    for what, spans in (("while loading", loading), ("otherwise", quiet)):
        seconds = np.array(seen.latencies(spans))
        p50, p99 = np.quantile(seconds, (0.5, 0.99)) * 1e3
        print(  # noqa: T201 - what the test is run by hand for
            f"{kind}, {workers} workers, {what}: {len(seconds)} requests, "
            f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"
        )
