"""Names that come twice."""

from collections.abc import Iterable


def repeated(names: Iterable[str]) -> list[str]:
    """The names that come more than once, each once, in the order in which they come again."""
    seen: set[str] = set()
    again: dict[str, None] = {}
    for name in names:
        if name in seen:
            again[name] = None
        seen.add(name)
    return list(again)
