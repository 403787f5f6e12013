"""The live page's own files: HTML, style sheets, scripts and the chart library."""

from importlib.resources import files

from serving.dashboard.answer import HTML, Content
from serving.plan_style import DRAWING_STYLE, TIP_SCRIPT
from sharded_infer.pages.style import BASE_STYLE

CSS = "text/css; charset=utf-8"
JAVASCRIPT = "text/javascript; charset=utf-8"
PAGE = "page.html"
_KINDS = {".html": HTML, ".css": CSS, ".js": JAVASCRIPT, "": "text/plain; charset=utf-8"}


def read_assets() -> dict[str, Content]:
    """The files by the path below `/dashboard/`; no path leads out of them.

    What this page shares with others, its palette and the drawing of plans, is made from theirs.
    """
    home = files("serving.dashboard") / "static"
    assets = {
        "base.css": Content.kept(CSS, (BASE_STYLE + DRAWING_STYLE).encode()),
        "plan_tip.js": Content.kept(JAVASCRIPT, TIP_SCRIPT.encode()),
    }
    for folder, prefix in ((home, ""), (home / "vendor", "vendor/")):
        for file in folder.iterdir():
            _, dot, suffix = file.name.rpartition(".")
            kind = _KINDS.get(dot + suffix if dot else "")
            if file.is_file() and kind is not None:
                assets[prefix + file.name] = Content.kept(kind, file.read_bytes())
    return assets
