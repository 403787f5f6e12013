"""A folder on any fsspec file system. Listings are never cached; errors name the object."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec.callbacks import Callback

from sharded_infer.errors import InputError, NotFoundError, ShardedInferError, StorageError
from sharded_infer.repositories.storage.conditional_write import (
    ConditionalWriter,
    PlainWriter,
    S3Writer,
)

_S3 = {"s3", "s3a"}
# An unresponsive store is reported within seconds instead of minutes.
_S3_CONFIG = {
    "connect_timeout": 5,
    "read_timeout": 60,
    "retries": {"mode": "standard", "max_attempts": 4},
}


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object or folder of a listing; `changed_at` is by the store's clock, if known."""

    name: str
    bytes: int
    is_folder: bool
    changed_at: datetime | None


class ObjectStore:
    """Objects below `url`, without its trailing slash. Thread-safe, and usable after a fork.

    Methods raise StorageError if the store is unreachable or refuses.
    """

    def __init__(self, url: str) -> None:
        """Open a store lazily; InputError if its file system or package is unknown."""
        self.url = url.rstrip("/")
        self._protocol = url.partition("://")[0]
        try:
            fsspec.get_filesystem_class(self._protocol)
        except ImportError as error:
            extra = "; pip install 'sharded-infer[s3]'" if self._protocol in _S3 else ""
            raise InputError(f"{url}: {error}{extra}") from error
        except ValueError as error:
            raise InputError(f"{url}: no file system is known for it: {error}") from error
        self._opened: _Opened | None = None

    @property
    def has_folders(self) -> bool:
        """True if folders exist by themselves, and may be empty."""
        return self._protocol not in _S3

    def where(self, key: str) -> str:
        """The URL of an object, for messages."""
        return f"{self.url}/{key}" if key else self.url

    def entries(self, key: str = "") -> list[StoredObject]:
        """A folder's content, by name; empty if it is missing, NotFoundError without a bucket."""
        opened = self._open()
        try:
            with self._translated(key, "be listed"):
                opened.fs.invalidate_cache()
                found = opened.fs.ls(opened.path(key), detail=True)
        except _MissingError:
            return []
        entries = (
            _entry(fields) for fields in found if fields["name"].strip("/") != opened.path(key)
        )
        return sorted((entry for entry in entries if entry.name), key=lambda entry: entry.name)

    def find(self, key: str) -> StoredObject | None:
        """One object, requested by its key and not from a listing; None if there is none."""
        opened = self._open()
        try:
            with self._translated(key, "be read"):
                opened.fs.invalidate_cache()
                entry = _entry(opened.fs.info(opened.path(key)))
                return None if entry.is_folder else entry
        except _MissingError:
            return None

    def read(self, key: str, max_bytes: int) -> tuple[bytes, str] | None:
        """A small object and its content's tag; None if missing, StorageError if too large."""
        opened = self._open()
        try:
            with self._translated(key, "be read"):
                content, tag = opened.writer.read(opened.path(key), max_bytes)
        except _MissingError:
            return None
        if len(content) > max_bytes:
            raise StorageError(f"{self.where(key)}: expected at most {max_bytes} bytes")
        return content, tag

    def read_range(self, key: str, begin: int, end: int) -> bytes:
        """Bytes `[begin, end)` of an object, fewer at its end; NotFoundError if it is missing."""
        opened = self._open()
        with self._translated(key, "be read"):
            content, _ = opened.writer.read(opened.path(key), end - begin, begin)
        if len(content) > end - begin:
            raise StorageError(
                f"{self.where(key)}: expected {end - begin} bytes from byte {begin}, got more"
            )
        return content

    def create(self, key: str, content: bytes) -> bool:
        """Write a small object unless it exists; True if written."""
        opened = self._open()
        with self._translated(key, "be written"):
            self._make_home(opened, key)
            return opened.writer.create(opened.path(key), content)

    def replace(self, key: str, content: bytes, tag: str | None) -> bool:
        """Write a small object if its tag (None: no object) is unchanged; True if written."""
        if tag is None:
            return self.create(key, content)
        opened = self._open()
        with self._translated(key, "be written"):
            return opened.writer.replace(opened.path(key), content, tag)

    def upload(self, source: Path, key: str, sent: Callable[[int], None]) -> None:
        """Upload a file atomically; `sent` is called with the bytes of each part."""
        opened = self._open()
        with self._translated(key, "be written"):
            self._make_home(opened, key)
            opened.fs.put_file(str(source), opened.path(key), callback=_Sent(sent))

    def remove(self, key: str) -> None:
        """Remove an object or an empty folder, if it exists."""
        opened = self._open()
        try:
            with self._translated(key, "be removed"):
                opened.fs.rm_file(opened.path(key))
                home = opened.path(key).rpartition("/")[0]
                if self.has_folders and not opened.fs.ls(home, detail=False):
                    opened.fs.rmdir(home)
        except _MissingError:
            return

    def _open(self) -> "_Opened":
        # A file system's threads do not survive a fork: each process opens its own.
        if self._opened is None or self._opened.process != os.getpid():
            options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
            if self._protocol in _S3:
                options["config_kwargs"] = _S3_CONFIG
            with self._translated("", "be opened"):
                fs, root = fsspec.core.url_to_fs(self.url, **options)
            writer = S3Writer(fs) if self._protocol in _S3 else PlainWriter(fs)
            self._opened = _Opened(os.getpid(), fs, root.strip("/"), writer)
        return self._opened

    def _make_home(self, opened: "_Opened", key: str) -> None:
        if self.has_folders:
            opened.fs.makedirs(opened.path(key).rpartition("/")[0], exist_ok=True)

    @contextmanager
    def _translated(self, key: str, what: str) -> Iterator[None]:
        try:
            yield
        except ShardedInferError:
            raise
        except FileNotFoundError as error:
            if _code(error) == "NoSuchBucket":
                raise NotFoundError(f"{self.url}: no such bucket") from error
            raise _MissingError(f"{self.where(key)}: no such object") from error
        except PermissionError as error:
            raise StorageError(
                f"{self.where(key)}: cannot {what}: access denied: {error}"
            ) from error
        # File systems raise arbitrary errors of their libraries.
        except Exception as error:
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            reason = "the disk is full" if full else f"{type(error).__name__}: {error}"
            raise StorageError(f"{self.where(key)}: cannot {what}: {reason}") from error


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file system, opened by one process."""

    process: int
    fs: Any
    root: str
    writer: ConditionalWriter

    def path(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root


class _MissingError(NotFoundError):
    pass


class _Sent(Callback):  # type: ignore[misc]  # fsspec has no types
    """Counts the bytes sent."""

    def __init__(self, sent: Callable[[int], None]) -> None:
        super().__init__()
        self._sent = sent

    def relative_update(self, inc: int = 1) -> None:
        self._sent(inc)


def _code(error: BaseException) -> str | None:
    """The store's own error code, such as `NoSuchBucket`."""
    response = getattr(error.__cause__, "response", None)
    return response["Error"].get("Code") if isinstance(response, dict) else None


def _entry(fields: dict[str, Any]) -> StoredObject:
    is_folder = fields["type"] == "directory"
    changed = fields.get("LastModified") or fields.get("created")
    return StoredObject(
        name=fields["name"].rstrip("/").rpartition("/")[2],
        bytes=0 if is_folder else int(fields["size"] or 0),
        is_folder=is_folder,
        changed_at=changed if isinstance(changed, datetime) else None,
    )
