"""The id maps of a version, and the places of its ordered rows, from their files."""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from kernels.errors import InputError
from kernels.ids.id_index import IdIndex
from kernels.ids.index_layout import HEADER_BYTES
from kernels.ids.row_places import RowPlaces
from kernels.mapped_file import MappedFile
from sharded_infer.address_space import is_short_of_memory, memory_short
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.file_mapping import map_file
from sharded_infer.artifacts.mapped_tables import CopyFile
from sharded_infer.artifacts.row_blocks import IdRange, check_brought, index_spans
from sharded_infer.artifacts.table_memory import TableMemory, copy_to_huge_pages
from sharded_infer.errors import ArtifactError
from sharded_infer.files.regular_file import open_regular
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.inputs.placed_ids import PlacedIds
from sharded_infer.specs.model_spec import TableSpec


def open_id_maps(
    artifact: Artifact,
    memory: TableMemory = TableMemory.MAP,
    copy_file: CopyFile = copy_to_huge_pages,
    tables: Collection[str] | None = None,
    ranges: Sequence[IdRange] = (),
) -> dict[str, IdMap]:
    """Map or copy the id maps of a version, by table, without tables that have none.

    `tables` restricts them (None: all); `ranges` are of files of which only these ids are needed:
    others may be unknown, and are not copied.

    Raises:
        ArtifactError: a file is not an index of ids of its table, or ids were not fetched.
        CapacityError: there is not enough memory; gives the size.
    """
    files = artifact.manifest.id_maps
    if files is None:
        return {}
    check_brought(artifact, ranges)
    by_file: dict[str, list[IdRange]] = defaultdict(list)
    for one in ranges:
        by_file[one.file].append(one)

    def copy(path: Path, of_file: Sequence[IdRange]) -> Tensor:
        if not of_file:
            return copy_file(path, _ignored)
        spans = [(0, HEADER_BYTES), *index_spans(path, of_file)]
        return copy_to_huge_pages(path, _ignored, spans, keeps_places=True)

    return {
        table.name: open_id_map(
            artifact.path / files[table.name],
            table,
            partial(copy, of_file=by_file[files[table.name]])
            if memory is TableMemory.HUGE
            else None,
            large=memory is TableMemory.AUTO,
        )
        for table in artifact.manifest.model_spec().mapped_tables
        if tables is None or table.name in tables
    }


def open_id_map(
    path: Path,
    table: TableSpec,
    copy: Callable[[Path], Tensor] | None = None,
    *,
    large: bool = False,
) -> IdMap:
    """Map one file, in 2 MiB pages if `large`, or copy it with `copy`.

    Raises ArtifactError if it is unreadable or not an index of the table's ids, CapacityError with
    the size if memory is short.
    """
    memory, mapped = _opened(path, copy, large=large)
    return _id_map(path, table, memory, mapped)


def open_row_places(
    artifact: Artifact,
    memory: TableMemory = TableMemory.MAP,
    copy_file: CopyFile = copy_to_huge_pages,
) -> dict[str, PlacedIds]:
    """Map or copy, and read, the places of ordered rows, by table with such rows.

    Raises ArtifactError, naming the file and the table, if a row has two places or none;
    CapacityError with the size if memory is short.
    """
    files = artifact.manifest.row_places or {}

    def copy(path: Path) -> Tensor:
        return copy_file(path, _ignored)

    return {
        table.name: open_places(
            artifact.path / files[table.name],
            table,
            copy if memory is TableMemory.HUGE else None,
            large=memory is TableMemory.AUTO,
        )
        for table in artifact.manifest.model_spec().ordered_tables
    }


def open_places(
    path: Path,
    table: TableSpec,
    copy: Callable[[Path], Tensor] | None = None,
    *,
    large: bool = False,
) -> PlacedIds:
    """Map or copy the places of one table's rows; as `open_id_map`."""
    memory, mapped = _opened(path, copy, large=large)
    try:
        return PlacedIds(table, RowPlaces.open(memory, table.rows), mapped)
    except InputError as error:
        raise ArtifactError(f"{path}: table {table.name!r}: {error}") from error


def _opened(
    path: Path, copy: Callable[[Path], Tensor] | None, *, large: bool
) -> tuple[memoryview, MappedFile | None]:
    if copy is not None:
        return copy(path).numpy().data, None
    size = 0
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped.
            mapping = map_file(file.fileno(), size, large=large) if size else memoryview(b"")
            mapped = MappedFile(path, file.fileno(), mapping) if size else None
    except (OSError, MemoryError) as error:
        if is_short_of_memory(error):
            raise memory_short(f"{path.name}: mapping it", size) from error
        raise ArtifactError(f"{path}: cannot be read: {error}") from error
    return mapping, mapped


def _id_map(path: Path, table: TableSpec, memory: memoryview, mapped: MappedFile | None) -> IdMap:
    try:
        index = IdIndex.open(memory)
    except InputError as error:
        raise ArtifactError(f"{path}: {error}") from error
    if index.table_rows != table.rows:
        raise ArtifactError(
            f"{path}: is for a table of {index.table_rows} rows, table {table.name!r} has "
            f"{table.rows}"
        )
    return IdMap(table, index, mapped)


def _ignored(_count: int) -> None: ...
