"""Memory of structures that compiled code reads by their addresses."""

import ctypes
from collections.abc import Iterable
from typing import Any


class Structures:
    """Arrays of structures, kept while others have their addresses."""

    def __init__(self) -> None:
        self._kept: list[object] = []

    def keep(self, array: "ctypes.Array[Any]") -> int:
        """Address of an array."""
        self._kept.append(array)
        return ctypes.addressof(array)

    def listed(
        self, kind: type[ctypes.Structure], rows: Iterable[Iterable[object]]
    ) -> tuple[int, int]:
        """Address and length of an array of structures with the fields of `rows`."""
        structures = [kind(*row) for row in rows]
        return self.keep((kind * len(structures))(*structures)), len(structures)
