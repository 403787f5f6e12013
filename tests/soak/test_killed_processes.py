"""Two replicas of everything, of which one process after another is killed, but no last one."""

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from tests.support.marked_rows import publish_marked
from tests.support.marked_traffic import marked_traffic
from tests.support.replaceable import Replaceable, running_pairs
from tests.support.waiting import until

LONG = os.environ.get("SHARDED_INFER_SOAK") == "1"
SECONDS = 600 if LONG else 20
KILL_SECONDS = 1.0
# A new version comes after so many kills.
KILLS_A_VERSION = 10
DEADLINE = 10.0
# After its deadline, until a busy machine has told the client.
SLACK = 20.0
LEAST_ANSWERED = 0.999 if LONG else 0.5
QUICK = ("--poll-seconds", 0.2)
pytestmark = pytest.mark.timeout(SECONDS + 600)


def test_killed_processes_cost_no_answer(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish_marked(repository, 1)
    random, kills, published = Random(0), Counter[str](), 1
    with (
        running_pairs(repository, tmp_path, *QUICK, exit_code=None) as pairs,
        ThreadPoolExecutor(6) as starters,
    ):

        def victims() -> list[Replaceable]:
            whole = [pair for pair in pairs.all() if all(each.is_ready for each in pair)]
            return [one for pair in whole for one in pair]

        with marked_traffic(pairs.addresses, deadline=DEADLINE) as seen:
            until(lambda: len(seen.seconds) > 100, "there is traffic")
            began, starting = time.monotonic(), []
            while time.monotonic() < began + SECONDS:
                next_at = time.monotonic() + KILL_SECONDS
                until(victims, "a pair is whole")
                victim = random.choice(victims())
                victim.kill()
                kills[victim.role] += 1
                starting.append(starters.submit(victim.start))
                if kills.total() % KILLS_A_VERSION == 0:
                    published += 1
                    publish_marked(repository, published)
                time.sleep(max(0.0, next_at - time.monotonic()))
            seconds = time.monotonic() - began
            for one in starting:
                one.result()
            until(lambda: published in seen.versions, "the last version is served")
    share = seen.answered_share()
    print(  # noqa: T201 - what the long form is run by hand for
        f"\n{kills.total()} killed in {seconds:.0f} s {dict(kills)}, {published} versions; "
        f"{len(seen.seconds)} requests, {len(seen.wrong)} wrong, {len(seen.errors)} failed "
        f"({share:.4%} answered), {seen.repeats} sent again, slowest {max(seen.seconds):.2f} s"
    )
    assert seen.wrong == []
    assert [e for e in seen.errors if e[0] not in ("UNAVAILABLE", "DEADLINE_EXCEEDED")] == []
    assert max(seen.seconds) < DEADLINE + SLACK
    assert share >= LEAST_ANSWERED, Counter(seen.errors).most_common(10)
