"""Tables on a page whose heads sort them."""

from collections.abc import Iterable

from sharded_infer.pages.text import escaped

_SHORT = 200  # characters of a text that are shown before it is opened
LONGEST_TEXT = 10_000  # characters of a text that a cell holds


def sortable_table(label: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose heads sort it.

    Args:
        label: what it is a table of, as HTML.
        heads: of the columns; one that begins with # is of numbers.
        rows: of each the cells, as HTML.
    """
    head = "".join(
        f'<th scope="col"{" class=n" if h.startswith("#") else ""}>'
        f'<button type="button">{h.removeprefix("#")}</button></th>'
        for h in heads
    )
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def number_cell(text: str, value: float) -> str:
    """A number in words, and as what it is sorted by."""
    return f'<td class="n" data-v="{value!r}">{text}</td>'


def long_text(text: str) -> str:
    """A text as HTML; a long one opens on demand."""
    if len(text) <= _SHORT:
        return escaped(text)
    start = text[:_SHORT].rpartition(" ")[0] or text[:_SHORT]
    more = text[len(start) : LONGEST_TEXT]
    cut = "\N{HORIZONTAL ELLIPSIS}" if len(text) > LONGEST_TEXT else ""
    return (
        f"<details><summary>{escaped(start)} <span>\N{HORIZONTAL ELLIPSIS}</span></summary>"
        f"{escaped(more)}{cut}</details>"
    )
