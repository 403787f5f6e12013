"""String ids: on the wire, and hashed to raw ids as in a server."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kernels.ids import id_hash
from sharded_infer.errors import InputError, RequestError


def hash_strings(
    strings: Iterable[str | bytes], name: str = "xxh3_64", seed: int = 0
) -> NDArray[np.int64]:
    """The raw id of each string, int64 `[N]`, for ids that are sent as numbers.

    Args:
        strings: text is hashed as UTF-8.
        name: of the hash: `xxh3_64` or `murmur3_x64_128`, as `string_hash.INPUT` in the model's
            configuration.
        seed: as `string_hash_seed.INPUT` there.

    Raises:
        InputError: an unknown hash, an unsuitable seed, or a package built without a compiler.
        RequestError: an element is neither a string nor bytes, or is invalid text.
    """
    if name not in set(id_hash.StringHash):
        known = ", ".join(id_hash.StringHash)
        raise InputError(f"string hash {name!r}: expected one of {known}")
    found = id_hash.StringHash(name)
    return id_hash.hash_strings(found, *id_hash.joined_strings(encoded("strings", strings)), seed)


def encoded(what: str, strings: Iterable[object]) -> list[bytes]:
    """Strings as bytes, text as UTF-8; RequestError naming the input `what` otherwise."""
    listed = list(strings)
    found = [one for one in listed if isinstance(one, str | bytes)]
    if len(found) != len(listed):
        strange = next(one for one in listed if not isinstance(one, str | bytes))
        raise RequestError(f"{what}: expected strings, got {type(strange).__name__} among them")
    try:
        return [one if isinstance(one, bytes) else one.encode() for one in found]
    except UnicodeEncodeError as error:
        raise RequestError(f"{what}: a string is no text: {error.reason}") from error
