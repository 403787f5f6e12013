"""Results of a tower's user stage, kept for the next requests of the same users."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor

State = tuple[Tensor, ...]

# Bytes of an entry without its tensors' numbers: key, tensor objects, slots in two tables.
_ENTRY_BYTES = 600


class UserCache:
    """States of the most recent users, for one loaded version; thread-safe.

    Attributes:
        most_bytes: of all states; a larger state is not kept.
        hits, misses, evictions: counts of states.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.hits = self.misses = self.evictions = 0
        self._bytes = self._told = 0
        self._states: OrderedDict[bytes, State] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes of its states."""
        return self._bytes

    def __len__(self) -> int:
        """The number of states."""
        return len(self._states)

    def newly_evicted(self) -> int:
        """States evicted since the last call, for one caller."""
        with self._lock:
            evicted, self._told = self.evictions - self._told, self.evictions
        return evicted

    def take(self, keys: Sequence[bytes]) -> list[State | None]:
        """States of some users; None where not kept."""
        states = []
        with self._lock:
            for key in keys:
                state = self._states.get(key)
                if state is not None:
                    self._states.move_to_end(key)
                states.append(state)
            missing = states.count(None)
            self.misses += missing
            self.hits += len(states) - missing
        return states

    def keep(self, key: bytes, state: State) -> None:
        """Keeps a user's state; evicts the least recently used ones."""
        # A view would keep all of its larger tensor.
        own = tuple(one if _is_whole(one) else one.clone() for one in state)
        size = _bytes_of(own)
        if size > self.most_bytes:
            return
        with self._lock:
            before = self._states.pop(key, None)
            if before is not None:
                self._bytes -= _bytes_of(before)
            self._states[key] = own
            self._bytes += size
            while self._bytes > self.most_bytes:
                _, oldest = self._states.popitem(last=False)
                self._bytes -= _bytes_of(oldest)
                self.evictions += 1


def _is_whole(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def _bytes_of(state: State) -> int:
    return _ENTRY_BYTES + sum(tensor.nbytes for tensor in state)
