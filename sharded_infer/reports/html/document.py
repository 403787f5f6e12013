"""A self-contained HTML document.

Its style and script are inline. Its content security policy blocks everything else, even if a name
on the page contains HTML.
"""

import base64
import hashlib
from collections.abc import Iterable


def document(*, title: str, style: str, script: str, body: str) -> str:
    """A page.

    Args:
        title: title of the window, as HTML.
        script: the only script that may run.
        body: content of the page, as HTML.

    Returns:
        HTML that needs no other files and no network.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n{body}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of key figures: (name, value) pairs, both as HTML."""
    items = "\n".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f"<dl>\n{items}\n</dl>"


def section(title: str, note: str, content: str) -> str:
    """A section with a heading, an introductory sentence and content, all as HTML."""
    return f"<section>\n<h2>{title}</h2>\n<p>{note}</p>\n{content}\n</section>"
