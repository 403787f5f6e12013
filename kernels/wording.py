"""Words in messages: counts, lists of names, and suggestions for unknown ones."""

import re
from collections.abc import Iterable

_MOST_LISTED = 8
_LONGEST = 200  # characters of a name; a longer word is no misspelt one
_PARTS = re.compile(r"[^0-9a-z]+")
_DIGITS = re.compile(r"[0-9]+")


def counted(number: int, noun: str, form: str = "", plural: str = "") -> str:
    """A count with its singular noun: `1 sample`, `2 samples`.

    `form` is the number's format specification. An empty `plural` is the noun and an s.
    """
    return f"{number:{form}} {noun if number == 1 else plural or f'{noun}s'}"


def listed(names: Iterable[str]) -> str:
    """The first 8 names: `a, b`, `a, b, c, d, e, f, g, h and 2 more`, or `none`."""
    first, rest = (names := list(names))[:_MOST_LISTED], names[_MOST_LISTED:]
    return f"{', '.join(first) or 'none'}{f' and {len(rest)} more' if rest else ''}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: `; did you mean 'user'?`, or nothing."""
    near = nearest(word, known)
    return "" if near is None else f"; did you mean {near!r}?"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The name of which a word is most likely a misspelling; None if several are equally near.

    Near names differ by case or separators, by one edit, by two edits from 6 characters on, or by
    whole words, such as `user` and `user_id`. Names that differ only in numbers are not near.
    """
    if len(word) > _LONGEST:
        return None
    found: dict[int, list[str]] = {}
    for name in dict.fromkeys(known):
        distance = None if name == word else _distance(word.casefold(), name.casefold())
        if distance is not None:
            found.setdefault(distance, []).append(name)
    best = found[min(found)] if found else []
    return best[0] if len(best) == 1 else None


def _distance(word: str, name: str) -> int | None:
    parts, own = _words(word), _words(name)
    if parts == own:
        return 0
    if _DIGITS.sub("0", word) == _DIGITS.sub("0", name):
        return None
    most = 2 if min(len(word), len(name)) >= 6 else 1
    edits = _edits(word, name, most)
    if edits <= most:
        return edits
    least = min(set(parts), set(own), key=len)
    is_part = least and least <= set(parts) and least <= set(own)
    # Ranks after every misspelling.
    return most + 1 if is_part else None


def _words(name: str) -> list[str]:
    return [part for part in _PARTS.split(name) if part]


def _edits(one: str, other: str, most: int) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours; above `most`, any such number.

    Optimal string alignment distance (Damerau 1964; Wagner and Fischer 1974).
    """
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        earlier, before, row = before, row, [i]
        for j, right in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and one[i - 2] == right:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]
