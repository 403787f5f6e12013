"""Repeated names."""

from collections.abc import Iterable


def repeated(names: Iterable[str]) -> list[str]:
    """The repeated names, each once, in the order of their first repetition."""
    seen: set[str] = set()
    again: dict[str, None] = {}
    for name in names:
        if name in seen:
            again[name] = None
        seen.add(name)
    return list(again)
