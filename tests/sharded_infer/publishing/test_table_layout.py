from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from kernels.row_format import RowFormat
from sharded_infer.artifacts.manifest import PieceRecord
from sharded_infer.planning.plan import StoredTable
from sharded_infer.publishing.table_layout import lay_out


@st.composite
def table_lists(draw: st.DrawFn) -> list[StoredTable]:
    shapes = draw(
        st.lists(
            st.tuples(
                st.integers(1, 60), st.sampled_from([1, 2, 3, 8]), st.sampled_from(RowFormat)
            ),
            max_size=10,
        )
    )
    return [StoredTable(f"t{i}", *shape) for i, shape in enumerate(shapes)]


def in_files(
    tables: list[StoredTable], pieces: dict[str, list[PieceRecord]]
) -> dict[str, list[tuple[StoredTable, PieceRecord]]]:
    files = defaultdict(list)
    by_name = {table.name: table for table in tables}
    for name, records in pieces.items():
        for record in records:
            files[record.file].append((by_name[name], record))
    return files


@given(table_lists(), st.integers(1, 400))
def test_every_row_is_stored_once_and_in_order(tables: list[StoredTable], limit: int) -> None:
    pieces = lay_out(tables, limit)
    assert set(pieces) == {table.name for table in tables}
    for table in tables:
        rows = [
            row
            for piece in pieces[table.name]
            for row in range(piece.first_row, piece.first_row + piece.rows)
        ]
        assert rows == list(range(table.rows))
        files = [piece.file for piece in pieces[table.name]]
        assert files == sorted(set(files))


@given(table_lists(), st.integers(1, 400))
def test_a_file_is_within_its_limit_unless_one_row_exceeds_it(
    tables: list[StoredTable], limit: int
) -> None:
    for members in in_files(tables, lay_out(tables, limit)).values():
        stored = sum(record.rows * table.row_bytes for table, record in members)
        assert stored <= limit or [record.rows for _, record in members] == [1]


@given(table_lists(), st.integers(1, 400))
def test_a_file_is_of_one_format_and_its_entries_have_names_of_their_own(
    tables: list[StoredTable], limit: int
) -> None:
    for file, members in in_files(tables, lay_out(tables, limit)).items():
        assert {file.removeprefix("tables/").split("-")[0]} == {t.row_format for t, _ in members}
        entries = [record.entry for _, record in members]
        assert len(set(entries)) == len(entries)


@given(table_lists(), st.integers(1, 400))
def test_tables_of_one_dim_lie_together(tables: list[StoredTable], limit: int) -> None:
    for members in in_files(tables, lay_out(tables, limit)).values():
        dims = [table.dim for table, _ in members]
        assert dims == sorted(dims)


@given(table_lists(), st.integers(1, 400))
def test_only_a_table_larger_than_a_file_is_split(tables: list[StoredTable], limit: int) -> None:
    pieces = lay_out(tables, limit)
    for table in tables:
        if table.stored_bytes <= limit:
            (piece,) = pieces[table.name]
            assert piece.entry == table.name


@given(table_lists(), st.integers(1, 400))
def test_files_are_numbered_from_zero(tables: list[StoredTable], limit: int) -> None:
    files = in_files(tables, lay_out(tables, limit))
    for row_format in RowFormat:
        numbered = sorted(file for file in files if f"/{row_format}-" in file)
        wanted = [f"tables/{row_format}-{i:05d}.safetensors" for i in range(len(numbered))]
        assert numbered == wanted
