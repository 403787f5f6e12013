import io

import numpy as np
import pytest

from kernels.ids.id_index import IdIndex
from kernels.ids.index_layout import HEADER_BYTES, IndexLayout, hashes_of, read_header
from kernels.ids.index_writer import id_index_parts
from kernels.ids.partition import LAST_HASH, bytes_of_hashes, partition_hashes, parts_of

FIRSTS = (0, 2**61, 2**63, 2**63 + 1, 3 * 2**62)
STRANGE = np.array([0, -1, 1, 2**63 - 1, -(2**63)], np.int64)


def random_ids(count: int) -> np.ndarray:
    drawn = np.random.default_rng(count).integers(-(2**63), 2**63 - 1, count)
    return np.unique(np.concatenate([STRANGE, drawn]))


def test_the_hash_is_the_finalizer_of_splitmix64() -> None:
    # Outputs of the generator of Vigna's splitmix64.c for the seed 0.
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    step = 0x9E3779B97F4A7C15
    states = np.array([(n * step) % 2**64 for n in range(3)], np.uint64).view(np.int64)
    assert partition_hashes(states).tolist() == expected
    ids = random_ids(1000)
    assert len(np.unique(partition_hashes(ids))) == len(ids)
    np.testing.assert_array_equal(partition_hashes(ids), hashes_of(ids.view(np.uint64), 0))


def test_an_id_is_of_the_last_part_that_begins_before_its_hash() -> None:
    ids = random_ids(2000)
    parts = parts_of(ids, FIRSTS)
    for raw, part in zip(partition_hashes(ids).tolist(), parts.tolist(), strict=True):
        ends = (*FIRSTS, LAST_HASH + 1)
        assert ends[part] <= raw < ends[part + 1]
    # Of the part in between there is one hash.
    assert set(parts.tolist()) == {0, 1, 3, 4}
    assert not parts_of(ids, (0,)).any()


@pytest.mark.parametrize("count", [1, 40, 5000])
def test_a_part_is_searched_in_its_own_bytes(count: int) -> None:
    ids = random_ids(count)
    file = io.BytesIO()
    file.writelines(id_index_parts([(ids, np.arange(len(ids)))], len(ids), len(ids)))
    whole = np.frombuffer(file.getvalue(), np.uint8)
    layout, ends = read_header(whole), (*FIRSTS, LAST_HASH + 1)
    parts, asked = parts_of(ids, FIRSTS), np.concatenate([ids, random_ids(300)])
    sizes = []
    for part in range(len(FIRSTS)):
        begin, end = bytes_of_hashes(layout, ends[part], ends[part + 1] - 1)
        memory = np.zeros_like(whole)
        memory[:HEADER_BYTES] = whole[:HEADER_BYTES]
        memory[begin:end] = whole[begin:end]
        index, own = IdIndex.open(memory), ids[parts == part]
        np.testing.assert_array_equal(index.rows(own), np.flatnonzero(parts == part))
        strange = asked[parts_of(asked, FIRSTS) == part]
        np.testing.assert_array_equal(index.rows(strange), IdIndex.open(whole).rows(strange))
        sizes.append(end - begin)
    if count == 5000:
        assert max(sizes) < len(whole) / 2


def test_an_index_of_another_seed_is_needed_whole() -> None:
    layout = IndexLayout(count=4, table_rows=4, home_buckets=1000, seed=1)
    assert bytes_of_hashes(layout, 0, 5) == (HEADER_BYTES, layout.size)


def test_a_header_is_read_without_the_rest() -> None:
    layout = IndexLayout(count=4, table_rows=4, home_buckets=1000, seed=2**64 - 1)
    assert read_header(np.frombuffer(layout.header(), np.uint8), layout.size) == layout
