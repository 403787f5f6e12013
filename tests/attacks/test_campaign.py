"""Calls with random faults among honest ones, which are all answered rightly.

SHARDED_INFER_SOAK=1 makes it 1,000,000 of each, SHARDED_INFER_CAMPAIGN_CALLS any other number; `-s`
shows the rate.
"""

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.attacks.attacker import Footprint, Target
from tests.attacks.campaign import Campaign
from tests.attacks.conftest import INFER
from tests.support.servers import Ranker, good_inputs, infer_request, running_server
from tests.support.tls import issue_files
from tests.support.waiting import until

LONG = os.environ.get("SHARDED_INFER_SOAK") == "1"
CALLS = int(os.environ.get("SHARDED_INFER_CAMPAIGN_CALLS", 1_000_000 if LONG else 2_000))
WARM_UP = min(CALLS // 4, 10_000)
pytestmark = pytest.mark.timeout(4 * 3600 if CALLS > 10_000 else 300)
# Good calls, and the scores that each must get.
Messages = Mapping[bytes, Mapping[str, np.ndarray]]
# Calls that stall end soon, so that what they hold comes and goes many times.
SHORT_TIMES = """
import serving.grpc_api.compiled.settings as settings
settings._MESSAGE_SECONDS = settings._HANDSHAKE_SECONDS = settings._STALLED_SECONDS = 15.0
settings._KEEPALIVE_SECONDS = 10.0
import serving.cli
serving.cli.main()
"""


def test_honest_calls_are_answered_among_calls_with_random_faults(
    ranker: Ranker, tmp_path: Path
) -> None:
    inputs = [good_inputs(3, seed) for seed in range(20)]
    messages = {
        infer_request(one).SerializeToString(deterministic=True): ranker.predict(one)
        for one in inputs
    }
    # Without TLS and with it. The short form's time goes to waiting for calls that stall.
    with ThreadPoolExecutor(1 if LONG else 2) as threads:
        attacked = [
            threads.submit(attack, ranker.repository, messages, tmp_path / name, secure=secure)
            for name, secure in (("plain", False), ("TLS", True))
        ]
    for one in attacked:
        one.result()


def attack(repository: Path, messages: Messages, folder: Path, *, secure: bool) -> None:
    """Attacks a server of its own, whose honest clients must have their answers."""
    folder.mkdir()
    files, log = issue_files(folder), folder / "log"
    options = files.options() if secure else ()
    with running_server(repository, log, *options, program=SHORT_TIMES) as server:
        pid = server.process.pid
        credentials = grpc.ssl_channel_credentials(files.ca.read_bytes()) if secure else None
        target = Target(server.grpc_url, INFER, next(iter(messages)), credentials)
        tls = files.context("h2") if secure else None
        fresh = Footprint.of(pid)
        with Campaign(target, messages, seed=0, tls=tls) as warm:
            warm.run(WARM_UP)
        until(lambda: Footprint.of(pid).files <= fresh.files, "the first clients are gone")
        before = Footprint.of(pid)
        with Campaign(target, messages, seed=24, tls=tls) as campaign:
            began, worked = time.monotonic(), time.thread_time()
            campaign.run(CALLS)
            took, worked = time.monotonic() - began, time.thread_time() - worked
            assert campaign.end_stalled() > 0
            assert warm.wrong + campaign.wrong == [], (len(campaign.wrong), campaign.wrong[:5])
            assert campaign.right >= CALLS and campaign.faults >= CALLS
            until(lambda: Footprint.of(pid).is_about(before), f"as before: {before}")
            print(  # noqa: T201 - what the long form is run by hand for
                f"{folder.name}: {campaign.right} right, {campaign.faults} faulty; {took:.1f} s, "
                f"{worked:.1f} s of the client's processor; {before} -> {Footprint.of(pid)}"
            )
    text = log.read_text()
    assert "internal error" not in text and "Traceback" not in text, text[:5000]
