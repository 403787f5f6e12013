"""A folder that files of changed rows come into, in the order of their names."""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.change_files import open_changes
from sharded_infer.importing.changes.changed_rows import Changes, merged
from sharded_infer.importing.changes.written_files import written_names

_NUMBER = re.compile(r"([0-9]+)")


class FollowedFolder:
    """Files of changed rows, or folders of such files, in the order of their names.

    Numbers in names count as numbers: `step_9` comes before `step_10`. A file counts once it has
    its final name: whoever writes it renames it then, from a name that starts with a dot or ends in
    `.tmp` or `.partial`, or from elsewhere.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        # Names that were seen before; None before the first look.
        self._seen: frozenset[str] | None = None

    def pending(self, after: str | None = None) -> list[Path]:
        """What has not been published yet, in order.

        Args:
            after: the name that was published last, and with it all before it; None: none was.

        Raises:
            WeightsError: the folder cannot be read, or a file has come since the last call whose
                name is before `after`; names both.
        """
        names = written_names(self.path)
        try:
            found = pending_names(names, after, self._seen)
        except WeightsError as error:
            raise WeightsError(f"{self.path}: {error}") from error
        self._seen = frozenset(names)
        return [self.path / name for name in found]

    def read(self, paths: Iterable[Path], *, table: str | None = None) -> Changes:
        """The changes of several files as one; later rows win.

        Args:
            paths: in order, as `pending` returns them.
            table: as in `open_changes`.

        Raises:
            WeightsError: a file is damaged; names it. Nothing of the others is returned either.
        """
        changes: Changes = {}
        for path in paths:
            try:
                changes = merged(changes, open_changes(path, table=table))
            except WeightsError as error:
                where = "" if str(path) in str(error) else f"{path}: "
                raise WeightsError(f"{where}{error}") from error
        return changes


def pending_names(
    names: Sequence[str], after: str | None, seen: Collection[str] | None
) -> list[str]:
    """Names after the one that was published last, in order.

    Args:
        seen: names that were there before; None if that is not known.

    Raises:
        WeightsError: a new name is before `after`, so that it jumps the order.
    """
    ordered = sorted(names, key=_place)
    if after is None:
        return ordered
    for name in ordered:
        if seen is not None and name not in seen and _place(name) < _place(after):
            raise WeightsError(
                f"{name[:200]!r} jumps the order: expected a name after {after!r}, which is "
                "published"
            )
    return [name for name in ordered if _place(name) > _place(after)]


def _place(name: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Where a name stands in the order: `a9` before `a10`; equal ones by their characters."""
    steps = _NUMBER.split(name)
    texts, numbers = steps[::2], [*map(int, steps[1::2]), -1]
    return tuple(zip(texts, numbers, strict=True)), name
