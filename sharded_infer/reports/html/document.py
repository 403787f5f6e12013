"""A self-contained HTML document.

Its style and script are inline. Its content security policy blocks everything else, even if a name
on the page contains HTML.
"""

import base64
import hashlib
from collections.abc import Iterable

from sharded_infer.reports.html.style import BASE_STYLE, SORT_SCRIPT


def report_page(
    *,
    title: str,
    summary: Iterable[str],
    figures: Iterable[tuple[str, str]],
    sections: Iterable[str],
    style: str,
    script: str,
) -> str:
    """The layout of every report: title, summary, key figures, sections. All texts are HTML.

    Args:
        summary: paragraphs.
        figures: name and value of each.
        style: follows `BASE_STYLE`.
        script: follows `SORT_SCRIPT`.

    Returns:
        HTML that needs no other files and no network.
    """
    script += SORT_SCRIPT
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    paragraphs = "\n".join(f"<p>{paragraph}</p>" for paragraph in summary)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{BASE_STYLE}{style}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{title}</h1>\n{paragraphs}\n{_figures(figures)}\n</header>\n"
        f"<main>\n{chr(10).join(sections)}\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _figures(pairs: Iterable[tuple[str, str]]) -> str:
    items = "\n".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f"<dl>\n{items}\n</dl>"


def section(title: str, note: str, content: str) -> str:
    """A section with a heading, an introductory sentence and content, all as HTML."""
    return f"<section>\n<h2>{title}</h2>\n<p>{note}</p>\n{content}\n</section>"
