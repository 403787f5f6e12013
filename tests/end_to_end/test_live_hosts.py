"""The live page of a front in Chromium: its shard hosts and their replicas."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.fronts import check, hosts_file
from tests.support.live_page import chromium_refusal, opened
from tests.support.servers import MODEL, running_server
from tests.support.shard_host_processes import publish_for_hosts, running_shard_host

_REFUSAL = chromium_refusal()
pytestmark = pytest.mark.skipif(_REFUSAL is not None, reason=_REFUSAL or "")


def test_replicas_are_shown_with_their_state_and_versions(
    browser: Any,
    tmp_path: Path,
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    ranker = publish_for_hosts(tmp_path, 2, 2000)
    with (
        running_shard_host(ranker.repository, 1, tmp_path / "one") as one,
        running_shard_host(ranker.repository, 1, tmp_path / "two") as two,
    ):
        file = hosts_file(tmp_path, {1: (one, two)})
        options = ("--shard-hosts", file, "--workers", 2)
        with (
            running_server(ranker.repository, tmp_path / "front", *options) as front,
            opened(browser, front.http_url) as live,
        ):

            def shown(address: str) -> list[str]:
                return live.page.locator(f'tr[data-replica="{address}"] > *').all_inner_texts()  # type: ignore[no-any-return]

            for replica in (one, two):
                live.wait(
                    lambda replica=replica: shown(replica.address)[-1:] == [f"{MODEL} 1"],  # type: ignore[misc]
                    "its versions are shown",
                )
                name, state, *_ = shown(replica.address)
                assert (name, state) == (f"host 1 at {replica.address}", "healthy")
            check(front, ranker, 8)
            assert not Axe().run(live.page).violations_count
            os.kill(one.process.pid, signal.SIGSTOP)
            try:
                live.wait(lambda: shown(one.address)[1] == "ejected", "it is shown as ejected")
                assert shown(two.address)[1] == "healthy"
            finally:
                os.kill(one.process.pid, signal.SIGCONT)
            live.wait(lambda: shown(one.address)[1] == "healthy", "it is back")
            assert live.errors == []
