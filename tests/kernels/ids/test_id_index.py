import io
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.errors import InputError
from kernels.ids import id_index, index_writer
from kernels.ids.id_index import IdIndex
from kernels.ids.index_writer import id_index_parts

Ids = NDArray[np.int64]
INT64 = np.iinfo(np.int64)


def written(ids: Ids, rows: Ids, table_rows: int, chunk: int = 1000) -> bytes:
    file = io.BytesIO()
    chunks = (
        (ids[at : at + chunk], rows[at : at + chunk]) for at in range(0, max(1, len(ids)), chunk)
    )
    file.writelines(id_index_parts(chunks, len(ids), table_rows))
    return file.getvalue()


def unmixed(hashes: NDArray[np.uint64], seed: int = 0) -> Ids:
    """Inverse of `hashes_of`."""

    def unshifted(values: NDArray[np.uint64], shift: int) -> NDArray[np.uint64]:
        found = values
        for _ in range(64 // shift + 1):
            found = values ^ (found >> np.uint64(shift))
        return found

    def inverse(factor: int) -> np.uint64:
        return np.uint64(pow(factor, -1, 2**64))

    with np.errstate(over="ignore"):
        found = unshifted(hashes, 31) * inverse(0x94D049BB133111EB)
        found = unshifted(found, 27) * inverse(0xBF58476D1CE4E5B9)
        found = unshifted(found, 30) - np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15)
    return found.view(np.int64)


def random_ids(count: int, seed: int = 0) -> Ids:
    generator = np.random.default_rng(seed)
    return np.unique(generator.integers(INT64.min, INT64.max, count, endpoint=True))


def same_home(count: int) -> Ids:
    """Ids whose hashes are neighbours: all of one bucket under the first seed."""
    return unmixed(np.arange(count, dtype=np.uint64) + np.uint64(2**63))


SETS: dict[str, Callable[[], Ids]] = {
    "none": lambda: np.empty(0, np.int64),
    "one": lambda: np.array([5]),
    "zero": lambda: np.array([0]),
    "six": lambda: np.array([0, -1, INT64.min, INT64.max, 1, 2**32]),
    "sequential": lambda: np.arange(7000),
    "negative": lambda: np.arange(-5000, 0),
    "strided": lambda: np.arange(3000) << 40,
    "random": lambda: random_ids(20_000),
    "one bucket": lambda: same_home(600),
    "another seed": lambda: same_home(5000),
    "at the end": lambda: unmixed(~np.arange(900, dtype=np.uint64)),
}


@pytest.mark.parametrize("name", SETS)
def test_it_answers_as_a_dict_does(name: str) -> None:
    ids = SETS[name]()
    generator = np.random.default_rng(1)
    table_rows = len(ids) + 7
    rows = generator.permutation(table_rows)[: len(ids)]
    known = dict(zip(ids.tolist(), rows.tolist(), strict=True))
    index = IdIndex.open(written(ids, rows, table_rows))
    index.check(table_rows)
    edges = np.array([0, 1, -1, INT64.min, INT64.max, INT64.max - 1])
    asked = np.concatenate([ids, ids + 1, edges, random_ids(3000, seed=2), same_home(1000)])
    asked = generator.permutation(asked)
    expected = [known.get(one, -1) for one in asked.tolist()]
    assert index.rows(asked).tolist() == expected
    assert index.count == len(ids)
    assert (index._layout.seed > 0) is (name == "another seed")
    assert index.rows(asked[:0]).tolist() == []
    assert index.rows(asked[::3]).tolist() == expected[::3]


def test_the_order_of_the_ids_and_the_size_of_chunks_change_no_byte() -> None:
    ids = random_ids(20_000)
    rows = np.arange(len(ids))
    order = np.random.default_rng(0).permutation(len(ids))
    first = written(ids, rows, len(ids))
    assert written(ids[order], rows[order], len(ids), chunk=77) == first


def test_several_ranges_make_the_bytes_of_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ids = np.concatenate([random_ids(30_000), same_home(700)])
    whole = written(ids, ids & 1023, 1024)
    monkeypatch.setattr(index_writer, "_IDS_OF_A_PART", 500)
    monkeypatch.setattr(id_index, "_CHECKED_BUCKETS", 300)
    assert written(ids, ids & 1023, 1024) == whole
    IdIndex.open(whole).check(1024)


def test_ids_chosen_against_every_known_seed_are_spread_by_a_random_one() -> None:
    hashes = np.arange(1400, dtype=np.uint64) + np.uint64(2**63)
    chosen = [unmixed(hashes, seed) for seed in range(16)]
    ids = np.unique(np.concatenate([*chosen, random_ids(10_000)]))
    rows = np.arange(len(ids), dtype=np.int64)
    index = IdIndex.open(written(ids, rows, len(ids)))
    assert index._layout.seed > 15 and np.array_equal(index.rows(ids), rows)


def test_threads_search_one_index_at_once() -> None:
    ids = random_ids(50_000)
    index = IdIndex.open(written(ids, np.arange(len(ids)), len(ids)))
    orders = [np.random.default_rng(seed).permutation(len(ids)) for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        for order, found in zip(
            orders, pool.map(lambda o: index.rows(ids[o]), orders), strict=True
        ):
            assert np.array_equal(found, order)


def one_chunk(ids: object, rows: object) -> Iterator[tuple[Ids, Ids]]:
    yield np.asarray(ids), np.asarray(rows)


@pytest.mark.parametrize(
    ("ids", "rows", "count", "words"),
    [
        ([1, 2, -7, 2], [0, 1, 2, 3], 4, "id 2 occurs twice, for rows 1 and 3"),
        ([3] * 5000, [0] * 5000, 5000, "id 3 occurs twice, for rows 0 and 0"),
        ([1, 2], [0, 5], 2, "id 2 at 1: expected a row of 0 to 4, got 5"),
        ([1, 2], [0, -1], 2, "id 2 at 1: expected a row of 0 to 4, got -1"),
        ([1, 2], [0, 1], 3, "expected 3 ids, got 2"),
        ([1, 2], [0], 2, "ids from 0: expected ids and rows int64"),
        ([1.0, 2.0], [0, 1], 2, "got float64"),
        ([[1, 2]], [[0, 1]], 2, "got int64 [1, 2]"),
    ],
)
def test_ids_that_make_no_map_are_refused(
    ids: object, rows: object, count: int, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        list(id_index_parts(one_chunk(ids, rows), count, 5))
    assert words in str(caught.value)


@pytest.mark.parametrize("ids", [np.zeros(3, np.int32), np.zeros((2, 2), np.int64)])
def test_ids_of_another_dtype_or_shape_are_refused(ids: Ids) -> None:
    index = IdIndex.open(written(np.arange(3), np.arange(3), 3))
    with pytest.raises(InputError, match=r"ids: expected int64 \[N\]"):
        index.rows(ids)


def test_memory_does_not_grow_with_the_number_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    part = 20_000
    monkeypatch.setattr(index_writer, "_IDS_OF_A_PART", part)
    peaks = []
    for count in (10 * part, 100 * part):
        chunks = (
            (np.arange(at, at + part) * 2**20, np.arange(part)) for at in range(0, count, part)
        )
        tracemalloc.start()
        deque(id_index_parts(chunks, count, part), maxlen=0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 16 * 100 * part / 4
