"""A shard host whose disk has no room for the next version."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sharded_infer.artifacts.manifest import BLOCK_BYTES
from sharded_infer.files.cache_folder import CACHE_VARIABLE
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.storage.version_cache import VersionCache
from sharded_infer.repositories.version_copy import copy_version
from tests.support.fronts import running_front
from tests.support.marked_rows import MODEL, publish_marked
from tests.support.marked_traffic import marked_traffic
from tests.support.shard_host_processes import running_shard_host
from tests.support.waiting import until

QUICK = ("--poll-seconds", 0.1)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],  # noqa: S607
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # noqa: S607


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_host_without_room_serves_the_version_before_and_loads_the_next_when_there_is_room(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Repository(s3_url, VersionCache(tmp_path / "publisher"))

    def publish(version: int) -> None:
        publish_marked(tmp_path / "repository", version)
        copy_version(Repository(tmp_path / "repository"), MODEL, version, bucket)

    publish(1)
    disk = tmp_path / "disk"
    disk.mkdir()
    with (
        small_disk(disk, 16 * BLOCK_BYTES),
        running_shard_host(s3_url, 0, tmp_path / "host0", *QUICK) as other,
        monkeypatch.context() as with_disk,
    ):
        with_disk.setenv(CACHE_VARIABLE, str(disk))
        with running_shard_host(s3_url, 1, tmp_path / "host1", *QUICK) as full:
            with_disk.undo()
            hosts = {0: other, 1: full}
            with (
                running_front(s3_url, tmp_path, hosts, *QUICK) as front,
                marked_traffic([front.grpc_url]) as seen,
            ):
                until(lambda: seen.versions[1], "it answers")
                # What another process of the machine may do.
                free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
                (disk / "other").write_bytes(bytes(free - BLOCK_BYTES))
                publish(2)
                said = f"{MODEL} version 2: its share cannot be loaded: {disk}: the version needs"
                until(lambda: said in full.log.read_text(), "the host says it")
                waits = f"shard host 1 at {full.address}"
                until(lambda: waits in front.log.read_text(), "the front says it")
                seen.go_on()
                assert set(seen.versions) == {1}
                (disk / "other").unlink()
                until(lambda: seen.versions[2], "the next version is served")
    assert seen.errors == []
    assert seen.wrong == []
    assert full.log.read_text().count(said) == 1
