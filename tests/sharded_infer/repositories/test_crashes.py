"""Killed publishers, readers and collections, a few of each; `tests/soak` kills many more."""

from pathlib import Path

from tests.support.crashes import (
    kill_collections,
    kill_deltas,
    kill_parts,
    kill_publishers,
    kill_readers,
)
from tests.support.publisher import Publisher


def test_a_killed_publisher_harms_nothing(
    location: str, publish_copy: Publisher, tmp_path: Path
) -> None:
    kill_publishers(location, publish_copy, tmp_path / "victims", moments=8, seed=0)


def test_killed_readers_harm_no_cache(s3_url: str, publish_copy: Publisher, tmp_path: Path) -> None:
    kill_readers(s3_url, publish_copy, tmp_path / "victims", moments=6, seed=0)


def test_a_killed_collection_leaves_what_it_did_not_remove_whole(
    location: str, publish_copy: Publisher, tmp_path: Path
) -> None:
    kill_collections(location, publish_copy, tmp_path / "victims", moments=6, seed=0)


def test_a_killed_part_is_whole_or_none(
    location: str, published_version: Path, tmp_path: Path
) -> None:
    kill_parts(location, published_version, tmp_path / "victims", moments=5, seed=0)


def test_killed_deltas_harm_nothing(location: str, publish_copy: Publisher, tmp_path: Path) -> None:
    kill_deltas(location, publish_copy, tmp_path / "victims", moments=8, seed=0)
