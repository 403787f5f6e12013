"""Sortable HTML tables."""

from collections.abc import Iterable

from sharded_infer.reports.html.text import escaped

_SHORT = 200  # characters of a text that are shown before it is expanded
LONGEST_TEXT = 10_000  # maximum characters of a text in a cell


def sortable_table(label: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, in HTML texts, that sorts by a column when its head is clicked.

    `label` is for screen readers; a leading # of a head marks a column of numbers.
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
    """A cell that shows `text` and sorts by `value`."""
    return f'<td class="n" data-v="{value!r}">{text}</td>'


def long_text(text: str) -> str:
    """A text as HTML; a long one can be expanded."""
    if len(text) <= _SHORT:
        return escaped(text)
    start = text[:_SHORT].rpartition(" ")[0] or text[:_SHORT]
    more = text[len(start) : LONGEST_TEXT]
    cut = "\N{HORIZONTAL ELLIPSIS}" if len(text) > LONGEST_TEXT else ""
    return (
        f"<details><summary>{escaped(start)} <span>\N{HORIZONTAL ELLIPSIS}</span></summary>"
        f"{escaped(more)}{cut}</details>"
    )
