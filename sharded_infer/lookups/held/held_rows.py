"""Rows that this process looks up, in mapped files or copies: all of a version's, or some."""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.mapped_tables import CopyFile, TablePiece, check_files, table_pieces
from sharded_infer.artifacts.row_blocks import check_brought
from sharded_infer.artifacts.table_memory import (
    TableMemory,
    copy_to_huge_pages,
    huge_page_bytes,
    map_pages,
)
from sharded_infer.deltas.overlays import open_overlays, overlaid
from sharded_infer.lookups.held.row_memory import RowMemory
from sharded_infer.lookups.placement import PlacedPiece, hold, stored_ranges
from sharded_infer.progress import Progress, no_progress, summed_progress


class HeldRows:
    """Placed pieces with their rows in memory.

    Attributes:
        pieces: memory of each piece's rows.
        row_memory: their tiers; None: all rows are mapped or copied.
    """

    def __init__(
        self,
        artifact: Artifact,
        own: Sequence[PlacedPiece],
        memory: TableMemory,
        *,
        is_share: bool,
        copy_file: CopyFile = copy_to_huge_pages,
        row_memory_bytes: int | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """Maps or copies the rows of `own` pieces, or opens their tiers.

        Args:
            is_share: copy, or enter into the page table, only their rows instead of all table
                files.
            copy_file: makes copies of whole files, or finds those of other processes.
            row_memory_bytes: for rows in tiers, whatever `memory` says; None: there are none.

        Raises InputError if tiers do not support the rows, and as `open_model` does.
        """
        self.row_memory: RowMemory | None = None
        if row_memory_bytes is not None:
            memory = TableMemory.MAP
        if not is_share:
            stored = table_pieces(artifact, memory, progress, copy_file)
            stored = overlaid(stored, open_overlays(artifact))
            self.pieces: Mapping[PlacedPiece, TablePiece] = hold(own, stored)
            self._checked = [piece for pieces in stored.values() for piece in pieces]
            self._memories = list({p.memory.data_ptr(): p.memory for p in self._checked}.values())
            # Shards that were cut out of the files are copies.
            self.check_files()
            self._into_tiers(artifact, row_memory_bytes, progress)
            return
        # A front's file of hosts may change between the fetch and the load.
        check_brought(artifact, stored_ranges(own))
        mapping = TableMemory.MAP if memory is TableMemory.HUGE else memory
        stored = table_pieces(artifact, mapping, files={piece.file for piece in own})
        if own:
            names = {piece.table.name for piece in own}
            stored = overlaid(stored, open_overlays(artifact, names))
        pieces = hold(own, stored)
        for parts in stored.values():
            check_files(parts)
        whole = {piece: rows for piece, rows in pieces.items() if piece.holds_all_columns}
        if memory is TableMemory.HUGE:
            whole = _copied(artifact, whole, progress)
        self.pieces = pieces | whole
        self._checked = list(self.pieces.values())
        memories = {piece.file: rows.memory for piece, rows in whole.items()}
        self._memories = [
            memories[file][first:end]
            for file, ranges in _ranges(whole).items()
            for first, end in ranges
        ]
        self._into_tiers(artifact, row_memory_bytes, progress)

    def _into_tiers(self, artifact: Artifact, memory_bytes: int | None, progress: Progress) -> None:
        if memory_bytes is None or not self.pieces:
            return
        self.row_memory = RowMemory(artifact, self.pieces, memory_bytes)
        self.row_memory.load(progress)
        self.pieces = self.row_memory.pieces
        # The mapped parts of the files are not read.
        self._memories, self._checked = [], list(self.pieces.values())

    def map_pages(self, progress: Progress = no_progress) -> bool:
        """Maps the rows' pages before requests need them, changed rows' too.

        `progress` is called with the bytes; False if the kernel does not support it.
        """
        overlays = [piece.overlay for piece in self._checked if piece.overlay is not None]
        # Pieces of a table share them.
        changed = {rows.data_ptr(): rows for overlay in overlays for rows in overlay.stored}
        memories = [*self._memories, *changed.values()]
        total = sum(memory.numel() for memory in memories)
        # A part that begins within a page is mapped from the page's first byte.
        return map_pages(memories, summed_progress(progress, "mapping tables", total))

    def check_files(self) -> None:
        """Raises LostMemoryError, with file and sizes, if a mapped table was truncated."""
        check_files(self._checked)

    def huge_page_bytes(self) -> int:
        """Bytes of the tables that this process maps by huge pages now."""
        return huge_page_bytes(self._memories)


def _ranges(
    pieces: Mapping[PlacedPiece, TablePiece],
) -> dict[str, list[tuple[int, int]]]:
    """First byte and end of the rows in each file's memory, ascending, joined where they meet."""
    by_file: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for placed, rows in sorted(pieces.items(), key=lambda item: item[1].byte_offset):
        first, ranges = rows.byte_offset, by_file[placed.file]
        end = first + rows.own_rows * placed.table.row_bytes
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((first, end))
    return by_file


def _copied(
    artifact: Artifact, pieces: Mapping[PlacedPiece, TablePiece], progress: Progress
) -> dict[PlacedPiece, TablePiece]:
    """Mapped pieces in huge pages: a memory for each file, with their rows alone."""
    by_file = _ranges(pieces)
    total = sum(end - first for ranges in by_file.values() for first, end in ranges)
    read = summed_progress(progress, "copying tables", total)
    copied: dict[PlacedPiece, TablePiece] = {}
    for file, ranges in by_file.items():
        memory = copy_to_huge_pages(artifact.path / file, read, ranges)
        firsts = [first for first, _ in ranges]
        starts = [0, *itertools.accumulate(end - first for first, end in ranges)]
        for placed, rows in pieces.items():
            if placed.file == file:
                at = bisect.bisect_right(firsts, rows.byte_offset) - 1
                offset = starts[at] + rows.byte_offset - firsts[at]
                copied[placed] = replace(rows, memory=memory, byte_offset=offset, file=None)
    return copied
