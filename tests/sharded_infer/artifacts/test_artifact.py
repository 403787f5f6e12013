import hashlib
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sharded_infer.artifacts.artifact import open_artifact, verify_files
from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.errors import ArtifactError


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_every_byte_is_read_once_and_told_in_order(published_version: Path, threads: int) -> None:
    artifact = open_artifact(published_version)
    told: list[tuple[int, int]] = []
    inside = threading.Lock()

    def tell(_: str, done: int, total: int) -> None:
        # One call at a time.
        assert inside.acquire(blocking=False)
        told.append((done, total))
        inside.release()

    size = sum(record.bytes for record in artifact.manifest.files.values())
    assert verify_files(artifact, tell, threads=threads) == size
    assert told[-1] == (size, size)
    assert told == sorted(set(told)) and len(told) >= len(artifact.manifest.files)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_any_number_of_threads_names_the_first_altered(version_copy: Path, threads: int) -> None:
    artifact = open_artifact(version_copy)
    names = list(artifact.manifest.files)
    for name in names[1:]:
        content = bytearray((version_copy / name).read_bytes())
        content[-1] ^= 1
        (version_copy / name).write_bytes(content)
    with pytest.raises(ArtifactError, match="altered: its SHA-256") as error:
        verify_files(artifact, threads=threads)
    assert str(version_copy / names[1]) in str(error.value)


def test_hashes_of_another_number_of_blocks_are_refused(version_copy: Path) -> None:
    artifact = open_artifact(version_copy)
    name = sorted(artifact.manifest.table_files)[0]
    hashes = (version_copy / f"{name}.blocks").read_bytes() * 2
    record = FileRecord(len(hashes), hashlib.sha256(hashes).hexdigest())
    (version_copy / f"{name}.blocks").write_bytes(hashes)
    files = artifact.manifest.files | {f"{name}.blocks": record}
    other = replace(artifact, manifest=replace(artifact.manifest, files=files))
    with pytest.raises(ArtifactError, match=rf"{name}\.blocks: 64 bytes, expected 32: 32 for each"):
        verify_files(other, blocks=True)
