"""Publishers, readers and collections killed at many moments; run with SHARDED_INFER_SOAK=1."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.crashes import kill_collections, kill_deltas, kill_publishers, kill_readers
from tests.support.publisher import Publisher

pytestmark = [
    pytest.mark.skipif(os.environ.get("SHARDED_INFER_SOAK") != "1", reason="takes minutes"),
    pytest.mark.timeout(1800),
]


@pytest.mark.parametrize("kill", [kill_publishers, kill_collections, kill_deltas])
def test_what_fifty_killed_writers_leave_in_a_repository_is_whole(
    kill: Callable[..., object], location: str, publish_copy: Publisher, tmp_path: Path
) -> None:
    kill(location, publish_copy, tmp_path / "victims", moments=50, seed=1)


def test_killed_readers_harm_no_cache(s3_url: str, publish_copy: Publisher, tmp_path: Path) -> None:
    kill_readers(s3_url, publish_copy, tmp_path / "victims", moments=50, seed=1)
