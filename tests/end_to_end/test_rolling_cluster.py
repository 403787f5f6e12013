"""Upgrades: every process is replaced under requests, and messages have newer fields."""

import signal
from collections import Counter
from pathlib import Path

from tests.support.marked_rows import publish_marked
from tests.support.marked_traffic import marked_traffic
from tests.support.replaceable import running_pairs
from tests.support.waiting import until


def test_each_process_is_replaced_in_turn_and_no_request_fails(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish_marked(repository, 1)
    with (
        running_pairs(repository, tmp_path, exit_code=0) as pairs,
        marked_traffic(pairs.addresses) as seen,
    ):
        for one in (one for pair in pairs.all() for one in pair):
            asked = len(seen.seconds)
            until(lambda: len(seen.seconds) > asked + 50, "requests go on")  # noqa: B023
            one.running.process.send_signal(signal.SIGTERM)
            one.start()
        asked = len(seen.seconds)
        until(lambda: len(seen.seconds) > asked + 50, "requests go on")
    assert Counter(seen.errors) == {}
    assert seen.wrong == []
