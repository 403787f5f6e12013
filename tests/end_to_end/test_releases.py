"""New versions under traffic: swapped without a failed or wrong request, or refused."""

import os
import signal
import time
from pathlib import Path

from tests.support.server_pages import metric
from tests.support.server_processes import resident_bytes
from tests.support.servers import MODEL, running_server
from tests.support.traffic import POLL, Publisher, ask, client_of, flip_bit, states, traffic
from tests.support.waiting import until

SOAK = os.environ.get("SHARDED_INFER_SOAK") == "1"


def test_a_new_version_takes_over_and_no_request_fails_or_is_answered_wrong(
    publisher: Publisher, tmp_path: Path
) -> None:
    options = (*POLL, "--workers", 2)
    with (
        running_server(publisher.repository, tmp_path / "log", *options) as server,
        client_of(server) as client,
    ):
        swapped: dict[int, float] = {}
        with traffic(server) as seen:
            for version in (2, 3):
                assert publisher.good() == version
                until(lambda: version in seen.versions(), f"version {version}")  # noqa: B023
                everywhere = {"0": float(version), "1": float(version)}
                until(lambda: metric(server, "served_version") == everywhere, "all have it")  # noqa: B023
                swapped[version] = time.monotonic()
                answered = len(seen.answers)
                until(lambda: len(seen.answers) >= answered + 100, "traffic goes on")  # noqa: B023
        assert seen.errors() == []
        assert seen.wrong(publisher.expected) == []
        assert seen.versions() == [1, 2, 3]
        # No worker is a version behind once the page says that all have it.
        for version, moment in swapped.items():
            late = [a for a in seen.answers if a.began > moment and a.version < version]
            assert late == []
        # The one before stays, older ones are gone.
        assert ask(client, "2").version == 2
        assert "versions 2, 3 are served" in ask(client, "1").error
        assert {v: state for v, (state, _) in states(client).items()} == {
            1: "UNAVAILABLE", 2: "READY", 3: "READY",
        }  # fmt: skip
        assert metric(server, "model_loaded") == {"1": 0, "2": 1, "3": 1}
        assert metric(server, "served_version") == {"0": 3, "1": 3}
        assert metric(server, "label_version") == {"default": 3}
        assert metric(server, "version_loads_total") == {"": 3}
        (age,) = metric(server, "served_age_seconds").values()
        assert 0 < age < 3600
        assert all(s > 0 for s in metric(server, "version_load_seconds").values())
    assert "internal error" not in (tmp_path / "log").read_text()


def test_a_broken_version_is_reported_and_the_old_one_serves_on(
    publisher: Publisher, tmp_path: Path
) -> None:
    with (
        running_server(publisher.repository, tmp_path / "log", *POLL) as server,
        client_of(server) as client,
        traffic(server, clients=1) as seen,
    ):
        broken = {
            publisher.with_flipped_bit(): ("verify", "altered"),
            publisher.with_other_golden_scores(): ("golden", "differs from the fp32 model's"),
            publisher.without_a_tower(): ("verify", "missing"),
        }
        for version, (phase, words) in broken.items():
            until(lambda: "failed" in states(client).get(version, ("", ""))[1], words)  # noqa: B023
            state, reason = states(client)[version]
            assert state == "UNAVAILABLE" and f"failed at {phase}: " in reason and words in reason
        assert ask(client).version == 1
        failures = metric(server, "version_load_failures_total")
        assert {k: v for k, v in failures.items() if v} == {"verify": 2, "golden": 1}
        log = tmp_path / "log"
        until(lambda: log.read_text().count("is not served") == 3, "all three are logged")
        flip_bit(next((publisher.repository / MODEL / "2").glob("tables/*.safetensors")))
        # Asked to, the server tries all three again: the newest that is sound takes over.
        server.process.send_signal(signal.SIGHUP)
        until(lambda: ask(client).version == 2, "the repaired version")
        assert publisher.good() == 5
        until(lambda: ask(client).version == 5, "a good version")
        until(lambda: 5 in seen.versions(), "the traffic meets it")
    assert seen.errors() == []
    assert seen.wrong(publisher.expected) == []
    assert seen.versions() == [1, 2, 5]


def test_memory_comes_back_from_versions_that_are_unloaded(
    publisher: Publisher, tmp_path: Path
) -> None:
    options = ("--poll-seconds", 0.05)
    served = running_server(publisher.repository, tmp_path / "log", *options, forked=False)
    with served as server, client_of(server) as client:

        def swap() -> int:
            version = publisher.good()
            until(lambda: ask(client).version == version, f"version {version}")
            until(lambda: sum(metric(server, "model_loaded").values()) <= 2, "the oldest is gone")
            # The page says so before the files are unmapped.
            until(lambda: len(mapped_versions(server.process.pid)) <= 2, "it is unmapped")
            return resident_bytes(server.process.pid)

        swap()
        first = swap()
        last = [swap() for _ in range(50 if SOAK else 8)][-1]
        assert last <= 1.05 * first
        assert len(mapped_versions(server.process.pid)) == 2


def mapped_versions(pid: int) -> set[str]:
    mapped = Path(f"/proc/{pid}/maps").read_text().splitlines()
    lines = [line for line in mapped if "/tables/" in line]
    return {line.split("/tables/")[0].rpartition("/")[2] for line in lines}
