"""A version on disk: checked against its manifest, and opened."""

import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from kernels.mapped_file import MappedFile
from kernels.wording import counted
from sharded_infer.artifacts.block_hashes import BlockHasher, BlockHashes
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES, map_file
from sharded_infer.artifacts.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    FileRecord,
    Manifest,
    blocks_name,
    parse_manifest,
)
from sharded_infer.errors import ArtifactError, MisplacedError, NotFoundError, PlanError
from sharded_infer.files.regular_file import open_regular, read_regular
from sharded_infer.planning.plan import Plan, check_plan, load_plan
from sharded_infer.progress import Progress, no_progress

# Exceeds plans and reports of a million tables.
MAX_SMALL_BYTES = 256 * 2**20
_READ_BYTES = 2**20  # what is hashed stays in the cache meanwhile


@dataclass(frozen=True, slots=True)
class Artifact:
    """A version's folder and its manifest."""

    path: Path
    manifest: Manifest

    def plan(self, topology: str | None = None) -> Plan:
        """The plan for a topology, such as `cpu:2`; None: the first published.

        Raises NotFoundError if there is none, ArtifactError if it does not match these tables.
        """
        plans = self.manifest.plans
        chosen = next(iter(plans)) if topology is None else topology
        if chosen not in plans:
            raise NotFoundError(
                f"model {self.manifest.model!r} version {self.manifest.version}: no plan for "
                f"topology {chosen!r}; it was published for {', '.join(plans)}"
            )
        name = plans[chosen]
        try:
            plan = load_plan(self.read_small(name), name)
            check_plan(plan, self.manifest.stored_tables())
        except PlanError as error:
            raise ArtifactError(f"{self.path / name}: {error}") from error
        if plan.topology.name != chosen:
            raise ArtifactError(
                f"{self.path / name}: is for topology {plan.topology.name!r}, expected {chosen!r}"
            )
        return plan

    def block_hashes(self, name: str) -> BlockHashes:
        """The hashes of a table file's blocks.

        Raises NotFoundError if the version has none (see `Manifest.has_block_hashes`),
        ArtifactError if their file is missing, altered or of another size.
        """
        content = self.read_small(blocks_name(name))
        return BlockHashes(name, self.manifest.files[name], content)

    def read_small(self, name: str) -> bytes:
        """A small file of the version, such as its report, compared with the manifest.

        Raises NotFoundError for an unlisted file, ArtifactError if it is missing, altered or too
        large.
        """
        record = self.manifest.files.get(name)
        if record is None:
            raise NotFoundError(f"{self.path}: holds no {name}")
        path = self.path / name
        if record.bytes > MAX_SMALL_BYTES:
            raise ArtifactError(
                f"{path}: {counted(record.bytes, 'byte')}, expected at most {MAX_SMALL_BYTES}"
            )
        with open_listed(path, record) as file:
            content = file.read(record.bytes + 1)
        if hashlib.sha256(content).hexdigest() != record.sha256:
            raise ArtifactError(f"{path}: altered: its SHA-256 is another")
        return content


def open_artifact(path: Path) -> Artifact:
    """Read a version's manifest; errors as `read_manifest` and `artifact_of`."""
    return artifact_of(path, read_manifest(path))


def read_manifest(path: Path) -> bytes:
    """A version's stored manifest; NotFoundError if missing, ArtifactError if unreadable."""
    where = path / MANIFEST_NAME
    try:
        return read_regular(where, MAX_MANIFEST_BYTES)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: no {MANIFEST_NAME}, so no published version") from error
    except OSError as error:
        raise ArtifactError(f"{where}: cannot be read: {error.strerror}") from error


def artifact_of(path: Path, text: bytes) -> Artifact:
    """A version from its manifest's text; ArtifactError if damaged or of an unknown format."""
    where = path / MANIFEST_NAME
    manifest = parse_manifest(text, str(where))
    if path.name.isdigit() and int(path.name) != manifest.version:
        raise MisplacedError(f"{where}: says version {manifest.version}, its folder {path.name}")
    return Artifact(path, manifest)


def verify_files(
    artifact: Artifact,
    progress: Progress = no_progress,
    *,
    threads: int = 1,
    blocks: bool = False,
    names: Collection[str] | None = None,
) -> int:
    """Compare every file with the manifest; return the bytes read.

    Args:
        progress: called with the bytes read so far, by one thread at a time.
        threads: the number of files that are read at once.
        blocks: also compare the block hashes of table files, which a publish keeps consistent.
        names: of the files to compare; None: all that the manifest lists.

    Raises:
        ArtifactError: a file is missing, extra, altered or of another size; names it.
    """
    everything = artifact.manifest.files
    listed = everything if names is None else {name: everything[name] for name in names}
    found = _files_below(artifact.path)
    if extra := sorted(found - set(everything) - {MANIFEST_NAME}):
        raise ArtifactError(f"{artifact.path / extra[0]}: not listed in the manifest")
    for name, record in listed.items():
        open_listed(artifact.path / name, record).close()
    total = sum(record.bytes for record in listed.values())
    done, lock = 0, Lock()

    def read(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress("verifying", done, total)

    def verify(name: str) -> None:
        has_blocks = blocks and blocks_name(name) in listed
        hashes = artifact.block_hashes(name) if has_blocks else None
        _verify_file(artifact.path / name, listed[name], read, hashes)

    if threads == 1:
        for name in listed:
            verify(name)
        return total
    with ThreadPoolExecutor(threads) as pool:
        try:
            # In the manifest's order, so that errors name the same file for any number of threads.
            for _ in pool.map(verify, listed):
                pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return total


def _verify_file(
    path: Path, record: FileRecord, on_read: Callable[[int], None], blocks: BlockHashes | None
) -> None:
    digest, hasher = hashlib.sha256(), None if blocks is None else BlockHasher()
    with open_listed(path, record) as file:
        for chunk in _chunks(file, path, record.bytes):
            digest.update(chunk)
            if hasher is not None:
                hasher.update(chunk)
            on_read(len(chunk))
    if blocks is not None and hasher is not None:
        # First, since it locates the change.
        blocks.check_all(hasher.finish(), path)
    if digest.hexdigest() != record.sha256:
        raise ArtifactError(
            f"{path}: altered: its SHA-256 is {digest.hexdigest()[:12]}…, the manifest says "
            f"{record.sha256[:12]}…"
        )


def _chunks(file: BinaryIO, path: Path, size: int) -> Iterator[bytes | memoryview]:
    """A file's bytes; a large one is mapped, so that the page cache gets it in 2 MiB pages."""
    mapping = None
    if size >= HUGE_PAGE_BYTES:
        # Without the address space for it, the file is read.
        with suppress(OSError):
            mapping = map_file(file.fileno(), size, large=True)
    if mapping is None:
        while chunk := file.read(_READ_BYTES):
            yield chunk
        return
    # A file truncated meanwhile reads as zeros, and its hash differs.
    _watched = MappedFile(path, file.fileno(), mapping)
    for first in range(0, size, _READ_BYTES):
        yield mapping[first : first + _READ_BYTES]


def _files_below(path: Path) -> set[str]:
    found = set()
    for entry in path.rglob("*"):
        if entry.is_symlink():
            raise ArtifactError(f"{entry}: a symbolic link; a version holds files of its own")
        if not entry.is_dir():
            found.add(entry.relative_to(path).as_posix())
    return found


def open_listed(path: Path, record: FileRecord) -> BinaryIO:
    """Open a file of a version and compare its size alone; ArtifactError if it differs."""
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{path}: missing; the manifest says {counted(record.bytes, 'byte')}"
        ) from error
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    size = os.fstat(file.fileno()).st_size
    if size != record.bytes:
        file.close()
        problem = "too short" if size < record.bytes else "too long"
        raise ArtifactError(
            f"{path}: {problem}: {counted(size, 'byte')}, the manifest says {record.bytes}"
        )
    return file
