"""Where the rows of a version's tables lie, once its files are mapped or copied."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from kernels.wording import counted
from sharded_infer.artifact import Artifact
from sharded_infer.errors import ArtifactError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.table_file import MappedTable, map_table_file
from sharded_infer.table_memory import TableMemory, copy_to_huge_pages
from sharded_infer.table_pieces import TablePiece


def table_pieces(
    artifact: Artifact, memory: TableMemory = TableMemory.MAP, progress: Progress = no_progress
) -> dict[str, list[TablePiece]]:
    """Maps or copies the table files: where each table's rows lie.

    Args:
        artifact: the version.
        memory: where they are to lie.
        progress: told the bytes copied so far.

    Raises:
        ArtifactError: a table file does not hold what the manifest says.
        CapacityError: there is no memory to map or copy one; says how much.
    """
    manifest = artifact.manifest
    files = {record.file for table in manifest.tables for record in table.pieces}
    copied, total = 0, sum(manifest.files[name].bytes for name in files)

    def copy(path: Path) -> Tensor:
        def read(count: int) -> None:
            nonlocal copied
            copied += count
            progress("copying tables", copied, total)

        return copy_to_huge_pages(path, read)

    mapped: dict[str, dict[str, MappedTable]] = {}
    pieces: dict[str, list[TablePiece]] = defaultdict(list)
    for table in manifest.tables:
        row_bytes = table.row_format.row_bytes(table.dim)
        for record in table.pieces:
            if record.file not in mapped:
                mapped[record.file] = map_table_file(
                    artifact.path / record.file, None if memory is TableMemory.MAP else copy
                )
            found = mapped[record.file].get(record.entry)
            shape = None if found is None else (found.entry.rows, found.entry.row_bytes)
            if found is None or shape != (record.rows, row_bytes):
                raise ArtifactError(
                    f"{record.file}: {record.entry!r}: expected {counted(record.rows, 'row')} of "
                    f"{counted(row_bytes, 'byte')} for table {table.name!r}, got {shape}"
                )
            pieces[table.name].append(
                TablePiece(
                    found.memory, found.byte_offset, record.first_row, record.rows, found.file
                )
            )
    return pieces


def check_files(pieces: Mapping[str, Sequence[TablePiece]]) -> None:
    """Refuses mapped tables some of whose rows are gone; asks the system for each file's size.

    Args:
        pieces: from `table_pieces`.

    Raises:
        LostMemoryError: a file has become shorter since it was mapped, or cannot be read.
    """
    files = {id(piece.file): piece.file for parts in pieces.values() for piece in parts}
    for file in files.values():
        if file is not None:
            file.check_size()
