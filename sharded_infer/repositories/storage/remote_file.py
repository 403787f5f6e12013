"""A version's file in a store."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from kernels.wording import counted
from sharded_infer.artifacts.block_hashes import BlockHasher, BlockHashes
from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.errors import ArtifactError

_PART_BYTES = 16 * 2**20
_AHEAD = 4  # parts on their way: one connection of an object store is slower than a disk


def read_parts(read: Callable[[int, int], bytes], begin: int, end: int) -> Iterator[bytes]:
    """Yield `[begin, end)` in order, the last part possibly short; `read` must be thread-safe."""
    if begin >= end:
        return
    starts = iter(range(begin, end, _PART_BYTES))
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="sharded_infer-read") as threads:
        coming: deque[tuple[int, Future[bytes]]] = deque()

        def ask() -> None:
            if (start := next(starts, None)) is not None:
                stop = min(start + _PART_BYTES, end)
                coming.append((stop - start, threads.submit(read, start, stop)))

        try:
            for _ in range(_AHEAD):
                ask()
            while coming:
                expected, part = coming.popleft()
                content = part.result()
                ask()
                yield content
                if len(content) != expected:
                    return
        finally:
            for _, part in coming:
                part.cancel()


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file that can be read by ranges.

    Attributes:
        record: its size and hash in the manifest.
        size: returns its actual size in bytes; None if it is missing.
        read: reads bytes `[begin, end)`; may be called from several threads.
    """

    where: str
    record: FileRecord
    size: Callable[[], int | None]
    read: Callable[[int, int], bytes]

    def parts(self, begin: int, end: int | None = None) -> Iterator[bytes]:
        """Its bytes from `begin` to `end`, or to its own end, in parts."""
        return read_parts(self.read, begin, self.record.bytes if end is None else end)

    def check_size(self) -> None:
        """Compare its size with the manifest; ArtifactError if different or missing."""
        size, expected = self.size(), self.record.bytes
        if size is None:
            raise ArtifactError(
                f"{self.where}: missing; the manifest says {counted(expected, 'byte')}"
            )
        if size != expected:
            problem = "too short" if size < expected else "too long"
            raise ArtifactError(
                f"{self.where}: {problem}: {counted(size, 'byte')}, the manifest says {expected}"
            )

    def check_hash(self, found: str) -> None:
        """Compare its SHA-256 with the manifest; ArtifactError if it differs."""
        if found != self.record.sha256:
            raise ArtifactError(
                f"{self.where}: altered: its SHA-256 is {found[:12]}…, the manifest says "
                f"{self.record.sha256[:12]}…"
            )

    def content(self) -> bytes:
        """A small file's verified bytes; ArtifactError if they differ from the manifest."""
        self.check_size()
        content = b"".join(self.parts(0))
        self.check_hash(hashlib.sha256(content).hexdigest())
        return content

    def verify(self, got: Callable[[int], None], blocks: BlockHashes | None = None) -> None:
        """Compare the file, and optionally its blocks, with the manifest, without storing it.

        `got` is called with the bytes read. Raises ArtifactError if it is missing, altered or of
        another size, StorageError if the store is unreadable.
        """
        self.check_size()
        digest, hasher = hashlib.sha256(), None if blocks is None else BlockHasher()
        for part in self.parts(0):
            digest.update(part)
            if hasher is not None:
                hasher.update(part)
            got(len(part))
        if blocks is not None and hasher is not None:
            blocks.check_all(hasher.finish(), self.where)
        self.check_hash(digest.hexdigest())
