"""Choice of a replica for a call: equal routing keys go to the same one while it is ready.

A user's state is kept where it was computed. Rendezvous hashing (Thaler and Ravishankar 1998) moves
only the keys of replicas that come or go.
"""

import itertools
from collections.abc import Callable, Sequence
from hashlib import blake2b


class Replicas:
    """Targets of one client; thread-safe.

    Args:
        targets: gRPC names, different ones.
        is_ready: whether a target, by its index, has not failed to connect.

    Raises:
        ValueError: there is none, or one is named more than once.
    """

    def __init__(self, targets: Sequence[str], is_ready: Callable[[int], bool]) -> None:
        if not targets or len(set(targets)) != len(targets):
            raise ValueError(f"targets: expected different ones, at least one, got {targets}")
        self._targets = [target.encode() for target in targets]
        self._is_ready = is_ready
        self._next = itertools.count()

    def order(self, key: str | int | None) -> list[int]:
        """Indices of all targets, the ready ones first; without a key, each comes first in turn."""
        indices = list(range(len(self._targets)))
        if len(indices) == 1:
            return indices
        if key is None or key == "":
            first = next(self._next) % len(indices)
            indices = indices[first:] + indices[:first]
        else:
            text = f"{type(key).__name__}:{key}\0".encode()
            indices.sort(key=lambda at: blake2b(text + self._targets[at], digest_size=8).digest())
        return sorted(indices, key=lambda at: not self._is_ready(at))


def targets_of(target: str | Sequence[str]) -> list[str]:
    """The targets of a client's argument."""
    return [target] if isinstance(target, str) else list(target)
