"""Atomically renamed files of changed rows, so that no partial file is read."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from sharded_infer.errors import StorageError, WeightsError
from sharded_infer.files.regular_file import flush
from sharded_infer.importing.changes.changed_rows import Changes, check_changes

_UNFINISHED = (".tmp", ".partial")


def write_changes(changes: Changes, path: Path | str) -> None:
    """Write changed rows to a file that `open_changes` reads.

    The file is renamed once complete and on disk, so it may lie in a followed folder.

    Args:
        path: ends in `.safetensors`.

    Raises:
        WeightsError: inconsistent changes, or another suffix.
        StorageError: it cannot be written.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise WeightsError(f"{path}: expected a name that ends in .safetensors")
    named = _tensors(check_changes(changes, "the changes"))
    # Copies: safetensors refuses tensors that share memory.
    tensors = {name: tensor.clone() for name, tensor in named}
    try:
        with _unfinished(path) as place:
            save_file(tensors, place)
            flush(place)
            place.rename(path)
            flush(path.parent)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{path}: cannot be written: {error}") from error


def written_names(folder: Path) -> list[str]:
    """Sorted names of finished files in a folder; WeightsError if it is unreadable."""
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise WeightsError(f"{folder}: cannot be read: {error.strerror}") from error
    return [name for name in names if not name.startswith(".") and not name.endswith(_UNFINISHED)]


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    place = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield place
    finally:
        place.unlink(missing_ok=True)


def _tensors(changes: Changes) -> Iterator[tuple[str, Tensor]]:
    for table, changed in changes.items():
        if changed.rows is not None:
            yield f"{table}.ids", torch.from_numpy(changed.ids)
            yield f"{table}.{changed.row_format or 'values'}", changed.rows
        if len(changed.removed):
            yield f"{table}.removed", torch.from_numpy(changed.removed)
