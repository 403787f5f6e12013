from dataclasses import replace

import pytest

from kernels.errors import InputError
from kernels.row_format import HEADER_BYTES, RowFormat
from tests.support.device_tables import device_tables
from tests.support.lookup_cases import Case, store

# Rows of 16 bytes whose payload of 12 begins at 16.
TABLES = device_tables(store(Case([(3, 12)], [(0, False)]), RowFormat.INT8), alignment=16)


def test_no_access_ends_beyond_the_memory() -> None:
    assert TABLES.payload_alignment == 16
    # The last row would be read 4 bytes too far.
    end = TABLES.byte_offsets[0] + 3 * (HEADER_BYTES + 12)
    assert replace(TABLES, memory=TABLES.memory[:end]).payload_alignment == 4


@pytest.mark.parametrize("changes", [{"row_strides": (18,)}, {"memory": TABLES.memory[4:]}])
def test_rows_that_are_not_at_words_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InputError, match="payloads at multiples of 4, got rows from"):
        _ = replace(TABLES, **changes).payload_alignment  # type: ignore[arg-type]
