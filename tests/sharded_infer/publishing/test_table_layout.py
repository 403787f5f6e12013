from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from kernels.row_format import RowFormat
from sharded_infer.planning.plan import StoredTable
from sharded_infer.publishing.table_layout import lay_out


@st.composite
def table_lists(draw: st.DrawFn) -> list[StoredTable]:
    dims, formats = st.sampled_from([1, 2, 3, 8]), st.sampled_from(RowFormat)
    shapes = st.lists(st.tuples(st.integers(1, 60), dims, formats), max_size=10)
    return [StoredTable(f"t{i}", *shape) for i, shape in enumerate(draw(shapes))]


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
        # Only a table larger than a file is split.
        if table.stored_bytes <= limit:
            assert [piece.entry for piece in pieces[table.name]] == [table.name]


@given(table_lists(), st.integers(1, 400))
def test_a_file_is_of_one_format_within_its_limit_and_has_tables_of_one_dim_together(
    tables: list[StoredTable], limit: int
) -> None:
    files, by_name = defaultdict(list), {table.name: table for table in tables}
    for name, records in lay_out(tables, limit).items():
        for record in records:
            files[record.file].append((by_name[name], record))
    for file, members in files.items():
        stored = sum(record.rows * table.row_bytes for table, record in members)
        # One row may exceed it.
        assert stored <= limit or [record.rows for _, record in members] == [1]
        assert {file.removeprefix("tables/").split("-")[0]} == {t.row_format for t, _ in members}
        entries = [record.entry for _, record in members]
        assert len(set(entries)) == len(entries)
        dims = [table.dim for table, _ in members]
        assert dims == sorted(dims)
    for row_format in RowFormat:
        numbered = sorted(file for file in files if f"/{row_format}-" in file)
        wanted = [f"tables/{row_format}-{i:05d}.safetensors" for i in range(len(numbered))]
        assert numbered == wanted
