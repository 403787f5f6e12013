"""Upgrades: every process is replaced under requests, and messages have newer fields."""

import signal
from collections import Counter
from pathlib import Path

from tests.support.marked_rows import publish_marked
from tests.support.marked_traffic import marked_traffic
from tests.support.replaceable import running_pairs


def test_each_process_is_replaced_in_turn_and_no_request_fails(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish_marked(repository, 1)
    with (
        running_pairs(repository, tmp_path, exit_code=0) as pairs,
        marked_traffic(pairs.addresses) as seen,
    ):
        for one in (one for pair in pairs.all() for one in pair):
            seen.go_on()
            one.running.process.send_signal(signal.SIGTERM)
            one.start()
        seen.go_on()
    assert Counter(seen.errors) == {}
    assert seen.wrong == []
