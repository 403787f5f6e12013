"""Messages of which a few bytes are changed, and some are cut."""

from collections.abc import Iterator

import numpy as np

# Of tags, varints and numbers, these are where something begins or ends.
_EDGES = np.array([0, 1, 2, 3, 127, 128, 255], np.uint8)


def mutations(message: bytes, seed: int, count: int) -> Iterator[bytes]:
    generator = np.random.default_rng(seed)
    whole = np.frombuffer(message, np.uint8)
    for _ in range(count):
        changed = whole.copy()
        places = generator.integers(0, len(whole), generator.integers(1, 4))
        match generator.integers(3):
            case 0:
                changed[places] = generator.integers(0, 256, len(places))
            case 1:
                changed[places] ^= (1 << generator.integers(0, 8, len(places))).astype(np.uint8)
            case _:
                changed[places] = generator.choice(_EDGES, len(places))
        yield changed[: generator.integers(1, 3 * len(whole))].tobytes()
