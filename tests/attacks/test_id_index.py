"""Hostile and damaged indexes of raw ids: refused, and harmless where nobody has checked them."""

import io
import struct
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.errors import InputError
from kernels.ids.id_index import IdIndex
from kernels.ids.index_layout import BUCKET, HEADER_BYTES, hashes_of, homes_of
from kernels.ids.index_writer import id_index_parts

ROWS = 500
IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, ROWS)
Damage = Callable[[bytearray, NDArray[np.void]], None]


@pytest.fixture
def data() -> bytearray:
    file = io.BytesIO()
    file.writelines(id_index_parts([(IDS, np.arange(ROWS))], ROWS, ROWS))
    return bytearray(file.getvalue())


def _header(offset: int, form: str, value: object) -> Damage:
    return lambda data, _: struct.pack_into(form, data, offset, value)


def _cut(size: int) -> Damage:
    return lambda data, _: data.__delitem__(slice(size, None))


HEADERS: dict[str, tuple[Damage, str]] = {
    "other magic": (_header(0, "<8s", b"safetens"), "expected the first bytes b'id-index'"),
    "version": (_header(8, "<I", 2), "expected version 1, got 2"),
    "no home": (_header(16, "<Q", 0), "home buckets: expected 1 to 4294967296, got 0"),
    "too many homes": (_header(16, "<Q", 2**40), "home buckets: expected 1 to 4294967296"),
    "more homes": (_header(16, "<Q", 126), "bytes for 126 home buckets"),
    "fewer homes": (_header(16, "<Q", 124), "bytes for 124 home buckets"),
    "too many ids": (_header(24, "<Q", 626), "ids: expected 0 to 625, got 626"),
    "too many rows": (_header(32, "<Q", 2**33), "rows of the table: expected 0 to 4294967296"),
    "reserved bytes": (_header(63, "<B", 1), "expected zeros at the end of the header"),
    **{f"the first {size} bytes": (_cut(size), "a header of 64 bytes") for size in (0, 1, 63)},
    **{f"bytes to {size}": (_cut(size), "bytes for 125 home") for size in (64, 1000, -64, -1)},
    "64 bytes more": (lambda data, _: data.extend(bytes(64)), "bytes for 125 home buckets"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_wrong_header_or_size_is_refused(name: str, data: bytearray) -> None:
    damage, words = HEADERS[name]
    damage(data, np.empty(0, BUCKET))
    with pytest.raises(InputError) as caught:
        IdIndex.open(bytes(data))
    assert words in str(caught.value)


def _full(buckets: NDArray[np.void]) -> int:
    """A bucket whose slots are all used."""
    return int(np.flatnonzero((buckets["last"] & np.uint32(255)) == 5)[0])


def _twice(_: bytearray, buckets: NDArray[np.void]) -> None:
    buckets["keys"][_full(buckets), 1] = buckets["keys"][_full(buckets), 0]


def _twice_in_two_buckets(_: bytearray, buckets: NDArray[np.void]) -> None:
    at = int(np.flatnonzero(buckets["last"] >= 256)[0])
    buckets["keys"][at + 1, 0] = buckets["keys"][at, 0]


def _foreign(_: bytearray, buckets: NDArray[np.void]) -> None:
    at = _full(buckets)
    buckets["keys"][at, 0] = buckets["keys"][at + 20, 0]


def _row_outside(_: bytearray, buckets: NDArray[np.void]) -> None:
    buckets["rows"][_full(buckets), 4] = ROWS


def _too_many_used(_: bytearray, buckets: NDArray[np.void]) -> None:
    buckets["last"][_full(buckets)] += 1


def _slot_dropped(_: bytearray, buckets: NDArray[np.void]) -> None:
    at = int(np.flatnonzero((buckets["last"] & np.uint32(255)) == 3)[0])
    buckets["last"][at] -= 1


def _id_dropped(_: bytearray, buckets: NDArray[np.void]) -> None:
    at = int(np.flatnonzero(buckets["last"] == 3)[0])
    buckets["last"][at] = 2
    buckets["keys"][at, 2] = buckets["rows"][at, 2] = 0


def _unused_key(_: bytearray, buckets: NDArray[np.void]) -> None:
    buckets["keys"][-1, 3] = 7


def _unused_row(_: bytearray, buckets: NDArray[np.void]) -> None:
    buckets["rows"][-1, 0] = 7


def _no_filter(_: bytearray, buckets: NDArray[np.void]) -> None:
    """Ids behind it are not found any more."""
    buckets["last"][np.flatnonzero(buckets["last"] >= 256)[0]] &= 255


def _all_filters(_: bytearray, buckets: NDArray[np.void]) -> None:
    """Every search of an unknown id goes on as far as it may."""
    buckets["last"] |= np.uint32(0xFFFFFF00)


def _last_filter(_: bytearray, buckets: NDArray[np.void]) -> None:
    buckets["last"][-1] |= 256


DAMAGES: dict[str, tuple[Damage, str]] = {
    "an id twice in a bucket": (_twice, "occurs twice"),
    "an id twice in two buckets": (_twice_in_two_buckets, "occurs twice"),
    "an id far from home": (_foreign, "is of bucket"),
    "a row outside": (_row_outside, "a row is outside the table of 500 rows"),
    "too many slots": (_too_many_used, "more than 5 slots are used"),
    "a slot dropped": (_slot_dropped, "an unused slot is not zero"),
    "an id dropped": (_id_dropped, "expected 500 ids, got 499"),
    "an unused key": (_unused_key, "an unused slot is not zero"),
    "an unused row": (_unused_row, "an unused slot is not zero"),
    "no filter": (_no_filter, "another filter"),
    "all filters": (_all_filters, "bucket 0: another filter"),
    "last filter": (_last_filter, "bucket 379: another filter"),
    "count": (_header(24, "<Q", 499), "expected 499 ids, got 500"),
    "rows": (_header(32, "<Q", 499), "a row is outside the table of 499 rows"),
    "seed": (_header(12, "<I", 7), "is of bucket"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_refused_by_the_check_and_harmless_without_it(name: str, data: bytearray) -> None:
    damage, words = DAMAGES[name]
    damage(data, np.frombuffer(data, BUCKET, offset=HEADER_BYTES))
    index = IdIndex.open(bytes(data))
    found = index.rows(np.concatenate([IDS, np.arange(5000)]))
    assert found.min() >= -1 and found.max() < index.table_rows
    with pytest.raises(InputError) as caught:
        index.check(index.table_rows)
    assert words in str(caught.value)


def test_an_index_of_another_table_is_refused(data: bytearray) -> None:
    with pytest.raises(InputError, match="expected one for 400 rows, got one for 500"):
        IdIndex.open(bytes(data)).check(400)


def test_full_buckets_without_an_end_make_no_endless_search(data: bytearray) -> None:
    buckets = np.frombuffer(data, BUCKET, offset=HEADER_BYTES)
    buckets["keys"], buckets["rows"], buckets["last"] = 1, 0xFFFFFFFF, 0xFFFFFFFF
    index = IdIndex.open(bytes(data))
    asked = np.arange(-2000, 2000)
    # The last bucket of all, home of the greatest hashes, is searched too.
    assert homes_of(hashes_of(asked.view(np.uint64), 0), 125).max() == 124
    assert (index.rows(asked) == -1).all()


def test_any_bytes_are_searched_without_harm(data: bytearray) -> None:
    generator = np.random.default_rng(1)
    asked = np.concatenate([IDS, generator.integers(-(2**63), 2**63 - 1, 2000)])
    for _ in range(100):
        data[HEADER_BYTES:] = generator.bytes(len(data) - HEADER_BYTES)
        index = IdIndex.open(bytes(data))
        found = index.rows(asked)
        assert found.min() >= -1 and found.max() < ROWS
        with pytest.raises(InputError, match="id index: bucket"):
            index.check(ROWS)
