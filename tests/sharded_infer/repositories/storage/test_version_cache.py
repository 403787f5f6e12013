import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.errors import InputError
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.storage.version_cache import VersionCache, default_cache
from tests.support.publisher import Publisher

SIZE = 2**20


@pytest.fixture
def filled(s3_url: str, publish_copy: Publisher) -> str:
    """A repository with four versions, which differ in a file of 1 MiB."""
    repository = Repository(s3_url)
    for version in range(1, 5):
        content = np.random.default_rng(version).bytes(SIZE)
        assert publish_copy(repository, {"large.bin": content}) == version
    return s3_url


def fetch(url: str, cache: VersionCache, version: int) -> Path:
    repository = Repository(url, cache)
    path = repository.fetch("small", version)
    repository.release(path)
    return path


def test_the_versions_not_used_for_longest_go(filled: str, tmp_path: Path) -> None:
    cache = VersionCache(tmp_path / "small-cache", max_bytes=int(2.7 * SIZE))
    paths = {version: fetch(filled, cache, version) for version in (1, 2)}
    fetch(filled, cache, 1)
    paths[3] = fetch(filled, cache, 3)
    assert [version for version, path in paths.items() if path.exists()] == [1, 3]
    files = [file.stat() for file in cache.path.rglob("*") if file.is_file()]
    assert sum({file.st_ino: file.st_size for file in files}.values()) < 3 * SIZE
    verify_files(open_artifact(fetch(filled, cache, 2)))


def test_a_version_in_use_stays_however_small_the_bound(filled: str, tmp_path: Path) -> None:
    cache = VersionCache(tmp_path / "small-cache", max_bytes=SIZE)
    server = Repository(filled, cache)
    used = server.fetch("small", 1)
    for version in (2, 3):
        fetch(filled, cache, version)
    verify_files(open_artifact(used))
    server.release(used)
    fetch(filled, cache, 4)
    assert not used.exists()


def _fetch_in_process(url: str, path: Path, version: int) -> None:
    repository = Repository(url, VersionCache(path, max_bytes=2 * SIZE))
    for _ in range(3):
        folder = repository.fetch("small", version)
        verify_files(open_artifact(folder))
        repository.release(folder)


def test_processes_share_a_cache_that_is_too_small_for_all(filled: str, tmp_path: Path) -> None:
    arguments = (filled, tmp_path / "shared", 2)
    process = multiprocessing.get_context("spawn").Process(target=_fetch_in_process, args=arguments)
    process.start()
    _fetch_in_process(filled, tmp_path / "shared", 1)
    process.join(120)
    assert process.exitcode == 0


def test_the_environment_names_and_bounds_the_cache(tmp_path: Path) -> None:
    named = default_cache({"SHARDED_INFER_CACHE": "/big/disk", "SHARDED_INFER_CACHE_SIZE": "2GB"})
    assert (named.path, named.max_bytes) == (Path("/big/disk"), 2 * 10**9)
    users = default_cache({"XDG_CACHE_HOME": str(tmp_path)})
    assert (users.path, users.max_bytes) == (tmp_path / "sharded-infer", None)
    with pytest.raises(InputError, match="SHARDED_INFER_CACHE_SIZE: 'much'"):
        default_cache({"SHARDED_INFER_CACHE_SIZE": "much"})


def test_partial_files_that_nobody_downloads_go_too(filled: str, tmp_path: Path) -> None:
    cache = VersionCache(tmp_path / "small-cache", max_bytes=2 * SIZE)
    left = cache.path / "files" / ("0" * 64 + ".partial")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x" * SIZE)
    fetch(filled, cache, 1)
    assert not left.exists()
