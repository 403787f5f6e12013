"""Small files that several processes change: replaced atomically if unchanged since read."""

import os
from pathlib import Path

from sharded_infer.errors import StorageError
from sharded_infer.files.file_lock import locked_folder
from sharded_infer.files.regular_file import flush, read_regular


def read_tagged(path: Path, max_bytes: int) -> tuple[bytes, str] | None:
    """A file's content and tag; None if missing, StorageError if irregular or too large."""
    try:
        content = read_regular(path, max_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
    return content, content.hex()


def replace_tagged(path: Path, content: bytes, tag: str | None, max_bytes: int) -> bool:
    """Replace a file if its tag is unchanged (None: no file); True if replaced, or StorageError."""
    new = path.with_name(f".{path.name}.new")
    try:
        with locked_folder(path.parent) as handle:
            found = read_tagged(path, max_bytes)
            if (None if found is None else found[1]) != tag:
                return False
            # Remains of a killed writer, or of anybody else.
            new.unlink(missing_ok=True)
            with new.open("xb") as file:
                file.write(content)
            flush(new)
            new.rename(path)
            os.fsync(handle)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
    return True
