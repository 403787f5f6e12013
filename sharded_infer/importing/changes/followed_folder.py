"""A folder that receives files of changed rows, in the order of their names."""

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

    Numbers in names sort numerically: `step_9` precedes `step_10`. A file counts once it has its
    final name. Its writer renames it from a name that starts with a dot or ends in `.tmp` or
    `.partial`, or from elsewhere.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        # Names seen before; None before the first scan.
        self._seen: frozenset[str] | None = None

    def pending(self, after: str | None = None) -> list[Path]:
        """Unpublished paths, in order.

        Args:
            after: the name published last, which covers all names before it; None: nothing is
                published.

        Raises:
            WeightsError: an unreadable folder, or a new file that precedes `after`; names both.
        """
        names = written_names(self.path)
        try:
            found = pending_names(names, after, self._seen)
        except WeightsError as error:
            raise WeightsError(f"{self.path}: {error}") from error
        self._seen = frozenset(names)
        return [self.path / name for name in found]

    def read(self, paths: Iterable[Path], *, table: str | None = None) -> Changes:
        """Merge the changes of several files, in the order of `pending`; later rows win.

        Args:
            table: as in `open_changes`.

        Raises:
            WeightsError: a file is damaged; names it. No changes are returned then.
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
    """Names after `after`, in order; WeightsError if one absent from `seen` precedes it."""
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
    steps = _NUMBER.split(name)
    texts, numbers = steps[::2], [*map(int, steps[1::2]), -1]
    return tuple(zip(texts, numbers, strict=True)), name
