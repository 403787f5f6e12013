"""Bounded reads, and conditional writes of small objects against concurrent writers.

Source: S3's user guide, "How to prevent object overwrites with conditional writes".
"""

import uuid
from typing import Any, Protocol

from fsspec.asyn import sync

_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_GONE = {"NoSuchKey", "404"}
_WRITER = "sharded-infer-writer"


class ConditionalWriter(Protocol):
    """Bounded reads and conditional writes of a store."""

    def read(self, path: str, max_bytes: int, begin: int | None = None) -> tuple[bytes, str]:
        """At most `max_bytes + 1` bytes of an object, or its range from `begin`, and its tag."""

    def create(self, path: str, content: bytes) -> bool:
        """Write an object unless it exists; True if written."""

    def replace(self, path: str, content: bytes, tag: str) -> bool:
        """Write an object if its tag is unchanged; True if written."""


class S3Writer:
    """Conditional writes of S3 and compatible stores: If-None-Match and If-Match."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def read(self, path: str, max_bytes: int, begin: int | None = None) -> tuple[bytes, str]:
        """At most `max_bytes + 1` bytes of an object, and its ETag, both from one response.

        A store may answer a range with more bytes than were asked for.
        """
        # Only the extra "s3" has it, without types.
        from s3fs.core import _error_wrapper  # type: ignore[import-untyped]

        bucket, key, _ = self._fs.split_path(path)
        part = {} if begin is None else {"Range": f"bytes={begin}-{begin + max_bytes - 1}"}

        async def get() -> tuple[bytes, str]:
            answer = await self._fs._call_s3("get_object", Bucket=bucket, Key=key, **part)
            content = bytearray()
            async with answer["Body"] as body:
                # A read may return fewer bytes than requested.
                while chunk := await body.read(max_bytes + 1 - len(content)):
                    content += chunk
            return bytes(content), str(answer["ETag"])

        # Connections that break while they are read are tried again.
        content, tag = sync(self._fs.loop, _error_wrapper, get, retries=self._fs.retries)
        return content, tag

    def create(self, path: str, content: bytes) -> bool:
        """Write an object unless it exists; True if written."""
        return self._put(path, content, {"IfNoneMatch": "*"})

    def replace(self, path: str, content: bytes, tag: str) -> bool:
        """Write an object if its ETag is unchanged; True if written."""
        return self._put(path, content, {"IfMatch": tag})

    def _put(self, path: str, content: bytes, condition: dict[str, str]) -> bool:
        bucket, key, _ = self._fs.split_path(path)
        mark = uuid.uuid4().hex
        try:
            self._fs.call_s3(
                "put_object",
                Bucket=bucket,
                Key=key,
                Body=content,
                Metadata={_WRITER: mark},
                **condition,
            )
        except OSError as error:
            response = getattr(error.__cause__, "response", None)
            code = response["Error"].get("Code") if isinstance(response, dict) else None
            if code not in _TAKEN | _GONE:
                raise
            # A write whose response was lost is retried, and then finds its own object.
            return code in _TAKEN and self._mark(bucket, key) == mark
        return True

    def _mark(self, bucket: str, key: str) -> str | None:
        try:
            head = self._fs.call_s3("head_object", Bucket=bucket, Key=key)
        except FileNotFoundError:
            return None
        return dict(head["Metadata"]).get(_WRITER)


class PlainWriter:
    """Any other file system: it may lack exclusive creation, and replacing is unconditional."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def read(self, path: str, max_bytes: int, begin: int | None = None) -> tuple[bytes, str]:
        """At most `max_bytes + 1` bytes of an object, or its range, and a constant tag."""
        start, end = (0, max_bytes + 1) if begin is None else (begin, begin + max_bytes)
        return bytes(self._fs.cat_file(path, start=start, end=end)), ""

    def create(self, path: str, content: bytes) -> bool:
        """Write an object unless it exists; True if written."""
        try:
            self._fs.pipe_file(path, content, mode="create")
        except FileExistsError:
            return False
        return True

    def replace(self, path: str, content: bytes, _tag: str) -> bool:
        """Write an object."""
        self._fs.pipe_file(path, content)
        return True
