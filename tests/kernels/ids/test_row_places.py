from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.errors import InputError
from kernels.ids.row_places import MOST_CLASSES, RowPlaces, places_bytes, write_places

# Ids 1 and 3 are in the first class, 0 and 2 in the second.
ORDER = np.array([1, 3, 0, 2], np.uint32)
FILE = write_places(ORDER).tobytes()


def order_of(count: int, classes: int) -> NDArray[np.uint32]:
    drawn = np.random.default_rng(count).integers(0, classes, count)
    return np.argsort(drawn, kind="stable").astype(np.uint32)


def changed(at: int, to: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:at] + bytes([to]) + content[at + 1 :]


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 255, 256, 257, 70_001])
@pytest.mark.parametrize("classes", [1, 2, MOST_CLASSES])
def test_each_id_has_the_row_that_stands_in_its_place(count: int, classes: int) -> None:
    order = order_of(count, classes)
    file = write_places(order)
    assert len(file) == places_bytes(count)
    opened = RowPlaces.open(file, count)
    assert opened.rows(order.astype(np.int64)).tolist() == list(range(count))


def test_six_bits_hold_a_place() -> None:
    assert places_bytes(10**9) < 10**9 * 0.751


def test_ids_without_a_place_stay_as_they_are() -> None:
    opened = RowPlaces.open(FILE, 6)
    assert opened.count == 4
    ids = np.array([0, 3, 2, 5, 4, -1, 1, 0])
    assert opened.rows(ids).tolist() == [2, 1, 3, 5, 4, -1, 0, 2]
    assert opened.rows(np.empty(0, np.int64)).tolist() == []


def test_an_order_with_too_many_classes_is_refused() -> None:
    assert len(write_places(np.arange(16, dtype=np.uint32)[::-1])) == places_bytes(16)
    with pytest.raises(InputError, match="at most 16 classes, got 17"):
        write_places(np.arange(17, dtype=np.uint32)[::-1])


@pytest.mark.parametrize(
    ("change", "rows", "words"),
    [
        (lambda content: b"", 4, "those of 1 to 4 ids, .* got 0 ids in 0 bytes"),
        (lambda content: content[:-1], 4, "got 4 ids in 255 bytes"),
        (lambda content: content + bytes(192), 4, "got 4 ids in 448 bytes"),
        (lambda content: content, 3, "1 to 3 ids, .* got 4 ids in 256 bytes"),
        (changed(0, 0), 4, "got 0 ids"),
        (changed(7, 1), 4, "got 72057594037927940 ids"),
        (changed(8, 1), 4, "bytes 8 to 64: expected zeros"),
        (changed(64, 1), 4, "expected classes that follow one another, in 4 rows"),
        (changed(68, 0), 4, "got first rows \\[0, 0"),
        # Id 4, of which there is none, and id 3 in another class.
        (changed(128, 0b10101), 4, "expected zeros behind id 3"),
        (changed(128, 0b1101), 4, "first rows .* and ends"),
    ],
)
def test_what_gives_a_row_to_two_ids_or_none_is_refused(
    change: Callable[[bytes], bytes], rows: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        RowPlaces.open(change(FILE), rows)


def test_every_bit_counts() -> None:
    content = write_places(order_of(700, MOST_CLASSES)).tobytes()
    for at in range(len(content)):
        with pytest.raises(InputError, match="row places: "):
            RowPlaces.open(changed(at, content[at] ^ 1 << at % 8)(content), 700)


def test_places_that_are_overwritten_later_read_no_row_outside() -> None:
    memory = bytearray(FILE)
    opened = RowPlaces.open(memoryview(memory), 4)
    memory[68:72] = (4).to_bytes(4, "little")
    with pytest.raises(InputError, match="id 0 has row 4, expected one of 4"):
        opened.rows(np.array([1, 0]))
    memory[68:72] = b"\xff" * 4
    with pytest.raises(InputError, match="id 0 has row 4294967295"):
        opened.rows(np.array([1, 0]))
    # The sum of a first row and a count has 32 bits.
    assert opened.rows(np.array([2])).tolist() == [0]
