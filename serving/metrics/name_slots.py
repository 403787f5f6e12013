"""Names of models that are added after the processes were forked."""

import mmap

from kernels.wording import counted
from serving.errors import LimitError
from sharded_infer.errors import InputError

# A length, then the name.
_PLACE_BYTES = 256


class NameSlots:
    """Places for names in anonymous shared memory, created before any fork; one process writes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._memory = mmap.mmap(-1, max(1, count) * _PLACE_BYTES)

    def name(self, place: int) -> str:
        """Name at a place; empty: none."""
        start = place * _PLACE_BYTES
        length = self._memory[start]
        return self._memory[start + 1 : start + 1 + length].decode()

    def find(self, name: str) -> int | None:
        """Place of a name."""
        return next((at for at in range(self._count) if self.name(at) == name), None)

    def take(self, name: str) -> None:
        """Puts a name in the first free place; raises LimitError, or InputError for a long name."""
        text = name.encode()
        if not 0 < len(text) < _PLACE_BYTES:
            raise InputError(f"model {name!r}: expected a name of 1 to {_PLACE_BYTES - 1} bytes")
        place = self.find("")
        if place is None:
            raise LimitError(
                f"model {name!r}: there are counters for {counted(self._count, 'model')} that come "
                "after the server's start, and all are taken; start it anew"
            )
        start = place * _PLACE_BYTES
        self._memory[start + 1 : start + 1 + len(text)] = text
        # Written last, so that readers see a whole name.
        self._memory[start] = len(text)
