"""Locations of the rows of a version's tables, once its files are mapped or copied."""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernels.mapped_file import MappedFile
from kernels.row_overlay import RowOverlay
from kernels.tiers.row_tier import TierPart
from sharded_infer.address_space import is_short_of_memory, memory_short
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.file_pages import read_large
from sharded_infer.artifacts.table_file import MappedTable, map_table_file
from sharded_infer.artifacts.table_header import holds_piece, wrong_entry
from sharded_infer.artifacts.table_memory import TableMemory, copy_to_huge_pages
from sharded_infer.errors import ArtifactError
from sharded_infer.progress import Progress, no_progress

# Copies a file, given its path and a callback for the bytes of each step, to huge pages.
CopyFile = Callable[[Path, Callable[[int], None]], Tensor]


@dataclass(frozen=True, slots=True)
class TablePiece:
    """A range of a table's rows in one memory.

    Attributes:
        memory: uint8 `[bytes]`; pieces of one file share it.
        byte_offset: of the range's first row in `memory`.
        file: the file that `memory` maps; None if it is a copy.
        overlay: changed rows that override those in `memory`.
        tier: the storage for lookups, while `memory` maps the whole file; None: `memory` itself.
    """

    memory: Tensor
    byte_offset: int
    first_row: int
    rows: int
    file: MappedFile | None = None
    overlay: RowOverlay | None = None
    tier: TierPart | None = None

    @property
    def own_rows(self) -> int:
        """Rows that `memory` holds; new ones after them are in the overlay alone."""
        return self.rows if self.overlay is None else min(self.rows, self.overlay.own_rows)

    def part(self, first_row: int, rows: int, row_bytes: int) -> "TablePiece":
        """A range from the table's row `first_row`, in the same memory."""
        skipped = first_row - self.first_row
        start = self.byte_offset + min(skipped, self.own_rows) * row_bytes
        overlay = None if self.overlay is None else self.overlay.part(skipped)
        tier = None if self.tier is None else self.tier.part(skipped)
        return TablePiece(self.memory, start, first_row, rows, self.file, overlay, tier)

    def read(self, first_row: int, last_row: int, row_bytes: int) -> Tensor:
        """Rows of the table with changes, read-only uint8 `[last_row - first_row, row_bytes]`."""
        own = self.own(first_row, last_row, row_bytes)
        if self.overlay is None:
            return own
        rows = torch.empty(last_row - first_row, row_bytes, dtype=torch.uint8)
        rows[: len(own)] = own
        self.overlay.patch(torch.arange(first_row, last_row) - self.first_row, rows)
        return rows

    def own(self, first_row: int, last_row: int, row_bytes: int) -> Tensor:
        """The unchanged rows of a range in `memory`: uint8 `[rows, row_bytes]`."""
        first, last = (
            self.byte_offset + min(row - self.first_row, self.own_rows) * row_bytes
            for row in (first_row, last_row)
        )
        return self.memory[first:last].view(-1, row_bytes)


def table_pieces(
    artifact: Artifact,
    memory: TableMemory = TableMemory.MAP,
    progress: Progress = no_progress,
    copy_file: CopyFile = copy_to_huge_pages,
    files: Container[str] | None = None,
) -> dict[str, list[TablePiece]]:
    """Map or copy the table files (`files`, None: all); each table's pieces by name.

    `progress` is called with the bytes copied so far. Raises ArtifactError if a table file
    disagrees with the manifest, CapacityError with the size if memory is short.
    """
    manifest = artifact.manifest
    copied, total = 0, sum(manifest.files[name].bytes for name in manifest.table_files)

    def copy(path: Path) -> Tensor:
        def read(count: int) -> None:
            nonlocal copied
            copied += count
            progress("copying tables", copied, total)

        return copy_file(path, read)

    mapped: dict[str, dict[str, MappedTable]] = {}
    pieces: dict[str, list[TablePiece]] = defaultdict(list)
    for table in manifest.tables:
        for record in table.pieces:
            if files is not None and record.file not in files:
                continue
            if record.file not in mapped:
                mapped[record.file] = map_table_file(
                    artifact.path / record.file,
                    copy if memory is TableMemory.HUGE else None,
                    large=memory is TableMemory.AUTO,
                )
            found = mapped[record.file].get(record.entry)
            if found is None or not holds_piece(found.entry, table, record):
                raise wrong_entry(table, record, None if found is None else found.entry)
            pieces[table.name].append(
                TablePiece(
                    found.memory, found.byte_offset, record.first_row, record.rows, found.file
                )
            )
    return pieces


def read_tables_large(
    artifact: Artifact,
    progress: Progress = no_progress,
    *,
    again: bool = False,
    names: Collection[str] | None = None,
) -> int:
    """Read files of tables and id maps into the page cache, mostly in 2 MiB pages.

    `progress` is called with the bytes mapped so far; `again` rereads smaller pages, see
    `file_pages.read_large`; `names` are of the files, None: all. Returns the bytes that a process
    maps by huge pages. Raises ArtifactError if a table file is unreadable, CapacityError with the
    size if one cannot be mapped.
    """
    manifest = artifact.manifest
    names = manifest.memory_files if names is None else names
    done, total = 0, sum(manifest.files[name].bytes for name in names)

    def mapped(count: int) -> None:
        nonlocal done
        done += count
        progress("mapping tables", done, total)

    found = 0
    for name in names:
        try:
            found += read_large(artifact.path / name, mapped, again=again)
        except OSError as error:
            if is_short_of_memory(error):
                raise memory_short(f"{name}: mapping it", manifest.files[name].bytes) from error
            raise ArtifactError(f"{name}: cannot be mapped: {error}") from error
    return found


def check_files(pieces: Iterable[TablePiece]) -> None:
    """Refuse mapped tables with lost rows, by each file's present size.

    Raises LostMemoryError if a file was truncated since it was mapped, or is unreadable.
    """
    files = {id(file): file for piece in pieces for file in _files_of(piece)}
    for file in files.values():
        file.check_size()


def _files_of(piece: TablePiece) -> tuple[MappedFile, ...]:
    own = () if piece.file is None else (piece.file,)
    return own if piece.overlay is None else (*own, *piece.overlay.files)
