"""What the user's stage of a tower returned, kept for the next requests of the same users."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor

State = tuple[Tensor, ...]

# Of an entry beside its tensors' numbers: the key, the tensors' objects, places in two tables.
_ENTRY_BYTES = 600


class UserCache:
    """The states of the users that were asked for last. Thread-safe.

    It belongs to one loaded version, so that no version gets another one's states.

    Attributes:
        most_bytes: of all states; one that is larger is not kept.
        hits, misses, evictions: states that were found, were not, and had to go.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.hits = self.misses = self.evictions = 0
        self._bytes = self._told = 0
        self._states: OrderedDict[bytes, State] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """What its states take."""
        return self._bytes

    def __len__(self) -> int:
        """The number of states."""
        return len(self._states)

    def newly_evicted(self) -> int:
        """States that had to go since the last call, for one caller."""
        with self._lock:
            found, self._told = self.evictions - self._told, self.evictions
        return found

    def take(self, keys: Sequence[bytes]) -> list[State | None]:
        """The states of some users; None of those that are not kept."""
        found = []
        with self._lock:
            for key in keys:
                state = self._states.get(key)
                if state is not None:
                    self._states.move_to_end(key)
                found.append(state)
            missing = found.count(None)
            self.misses += missing
            self.hits += len(found) - missing
        return found

    def keep(self, key: bytes, state: State) -> None:
        """Keeps a user's state; those that were asked for longest ago go."""
        # A part of a larger tensor would keep all of it.
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
