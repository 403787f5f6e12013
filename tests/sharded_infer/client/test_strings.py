import pytest

from kernels.ids.id_hash import StringHash, joined_strings
from kernels.ids.id_hash import hash_strings as hash_joined
from sharded_infer.client import hash_strings
from sharded_infer.errors import InputError, RequestError


@pytest.mark.parametrize("name", list(StringHash))
@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_text_is_hashed_as_its_bytes(name: StringHash, seed: int) -> None:
    words = ["", "a", "größe", "68fd1e64" * 40, "end\0"]
    encoded = [word.encode() for word in words]
    wanted = hash_joined(name, *joined_strings(encoded), seed).tolist()
    assert hash_strings(words, name.value, seed).tolist() == wanted
    assert hash_strings(encoded, name.value, seed).tolist() == wanted
    assert hash_strings(iter([]), name.value, seed).tolist() == []


def test_what_cannot_be_hashed_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="string hash 'md5': expected one of xxh3_64, murmur3"):
        hash_strings(["a"], "md5")
    with pytest.raises(InputError, match="expected an unsigned number of 32 bits, got 4294967296"):
        hash_strings(["a"], "murmur3_x64_128", 2**32)
    with pytest.raises(RequestError, match="strings: expected strings, got int among them"):
        hash_strings(["a", 7])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="strings: a string is no text: surrogates"):
        hash_strings(["\ud800"])
