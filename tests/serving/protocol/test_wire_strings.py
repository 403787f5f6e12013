import numpy as np
import pytest

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from serving.protocol.wire_strings import hashed_strings, packed_strings
from sharded_infer.errors import RequestError

XXH3 = (StringHash.XXH3_64, 7)
WORDS = [b"", b"a", "größe".encode(), b"\0\xff" * 40, b"a"]


def test_packed_strings_and_elements_have_the_hashes_of_the_strings() -> None:
    wanted = hash_strings(XXH3[0], *joined_strings(WORDS), XXH3[1])
    for data in (packed_strings(WORDS), memoryview(packed_strings(WORDS)), WORDS):
        assert np.array_equal(hashed_strings("f", [5], data, XXH3), wanted)
    assert wanted[1] == wanted[4] and len(set(wanted.tolist())) == 4


def test_no_strings_are_no_ids() -> None:
    assert hashed_strings("f", [0], b"", XXH3).tolist() == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "BYTES of 2 elements take 8 bytes at least, got 0"),
        (packed_strings(WORDS[:1]), "take 8 bytes at least, got 4"),
        (packed_strings([b"abcdefgh"]), r"BYTES \[2\] has 2 elements, got 1"),
        (packed_strings(WORDS), r"BYTES \[2\] has 2 elements, followed by 100 bytes"),
        (packed_strings([b"a", b"b"])[:-1], "element 1 is cut: 0 bytes left of 1"),
        (packed_strings([b"ab", b"b"]) + b"\1", "has 2 elements, followed by 1 byte"),
        (packed_strings([b"abcd"]) + b"\1", "element 1 is cut: its length has 4 bytes, 1 are left"),
        (b"\xff\xff\xff\xff" + b"a" * 9, "element 0 is cut: 9 bytes left of 4294967295"),
        ([b"a"], r"BYTES \[2\] has 2 elements, got 1"),
    ],
)
def test_strings_that_do_not_fit_their_shape_are_refused(data: object, words: str) -> None:
    with pytest.raises(RequestError, match=f"input 'f': .*{words}|input 'f': {words}"):
        hashed_strings("f", [2], data, XXH3)  # type: ignore[arg-type]
