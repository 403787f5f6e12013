"""Places of ordered rows: each row once, and nothing else is opened."""

import numpy as np
import pytest

from kernels.errors import InputError
from kernels.ids.row_places import RowPlaces

PLACES = np.array([3, 0, 2, 1], "<u4")


def test_ids_without_a_place_stay_as_they_are() -> None:
    opened = RowPlaces.open(PLACES.tobytes(), 6)
    assert opened.count == 4
    ids = np.array([0, 3, 2, 5, 4, -1, 1, 0])
    assert opened.rows(ids).tolist() == [3, 1, 2, 5, 4, -1, 0, 3]
    assert opened.rows(np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("places", "rows", "words"),
    [
        (b"", 4, "4 bytes for each of at most 4 rows, got 0 bytes"),
        (PLACES.tobytes()[:-1], 4, "got 15 bytes"),
        (PLACES.tobytes(), 3, "at most 3 rows, got 16 bytes"),
        (np.array([3, 0, 4, 1], "<u4").tobytes(), 8, "id 2 has row 4, expected 0 to 3"),
        (np.array([3, 0, 2**32 - 1, 1], "<u4").tobytes(), 8, "id 2 has row 4294967295"),
        (np.array([3, 0, 3, 1], "<u4").tobytes(), 4, "no id has row 2, expected each of 4 rows"),
    ],
)
def test_what_gives_a_row_to_two_ids_or_none_is_refused(
    places: bytes, rows: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        RowPlaces.open(places, rows)


def test_a_place_that_is_overwritten_later_reads_no_row_outside() -> None:
    memory = bytearray(PLACES.tobytes())
    opened = RowPlaces.open(memoryview(memory), 4)
    memory[0:4] = (4).to_bytes(4, "little")
    with pytest.raises(InputError, match="id 0 has row 4, expected one of 4"):
        opened.rows(np.array([1, 0]))
