"""Publishers, readers and collections killed at many moments; run with SHARDED_INFER_SOAK=1."""

import os
from pathlib import Path

import pytest

from tests.support.crashes import kill_collections, kill_deltas, kill_publishers, kill_readers
from tests.support.publisher import Publisher

pytestmark = [
    pytest.mark.skipif(os.environ.get("SHARDED_INFER_SOAK") != "1", reason="takes minutes"),
    pytest.mark.timeout(1800),
]


def test_fifty_killed_publishers_leave_a_repository_whole(
    location: str, publish_copy: Publisher, tmp_path: Path
) -> None:
    kill_publishers(location, publish_copy, tmp_path / "victims", moments=50, seed=1)


def test_fifty_killed_readers_leave_a_cache_whole(
    s3_url: str, publish_copy: Publisher, tmp_path: Path
) -> None:
    kill_readers(s3_url, publish_copy, tmp_path / "victims", moments=50, seed=1)


def test_fifty_killed_collections_leave_what_they_did_not_remove_whole(
    location: str, publish_copy: Publisher, tmp_path: Path
) -> None:
    kill_collections(location, publish_copy, tmp_path / "victims", moments=50, seed=1)


def test_fifty_killed_publishers_of_deltas_leave_a_repository_whole(
    location: str, publish_copy: Publisher, tmp_path: Path
) -> None:
    kill_deltas(location, publish_copy, tmp_path / "victims", moments=50, seed=1)
