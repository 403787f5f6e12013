"""Additions to the site: pages from outside docs/, and the Python reference.

MkDocs calls the functions that begin with `on_`. Nothing of ours is imported: the public names are
read from the source.
"""

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Pages from elsewhere in the repository, and their names in the site.
ELSEWHERE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "sharded_infer/FORMAT.md": "format.md",
}
# Packages whose public names have a reference, and its page.
PACKAGES = {"sharded_infer": "api/sharded_infer.md", "sharded_infer.client": "api/client.md"}
# Folder in the site of other repository files that pages link to.
FILES = "files/"
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_DIRECTORY = re.compile(r"\[([^]]*)\]\(([^)\s#]+)\)")
_NAME = re.compile(r"`([A-Za-z_]+)`")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Omits the map of the site."""
    # It would contain the day of the build and an address that the site does not have.
    config.theme.static_templates.discard("sitemap.xml")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds pages from elsewhere, the Python reference, and files that pages link to."""
    for source, name in ELSEWHERE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    for package, name in PACKAGES.items():
        files.append(File.generated(config, name, content=_reference(package)))
    sources = {file.src_uri: Path(str(file.abs_src_path)) for file in files.documentation_pages()}
    linked = {
        target
        for name, path in sources.items()
        if name not in PACKAGES.values()
        for target in _targets(name, path.read_text())
        if (ROOT / target).is_file() and not _place_in_site(target, files)
    }
    for target in sorted(linked):
        name = FILES + target
        files.append(File.generated(config, name, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links that leave docs/, and links public names to their reference."""
    name = page.file.src_uri
    if name in PACKAGES.values():
        return markdown
    if name == "index.md":
        # It is the only page of its part.
        page.meta["hide"] = ["navigation"]
    markdown = _lists_apart(markdown)
    if name == "python-api.md":
        markdown = _linked_names(markdown)

    def without_folder(found: re.Match[str]) -> str:
        target = _target(name, found[2])
        return found[1] if target is not None and (ROOT / target).is_dir() else found[0]

    def in_site(found: re.Match[str]) -> str:
        target = _target(name, found[1])
        if target is None:
            return found[0]
        place = _place_in_site(target, files) or FILES + target
        return posixpath.relpath(place, posixpath.dirname(name) or ".") + (found[2] or "")

    return _LINK.sub(in_site, _DIRECTORY.sub(without_folder, markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapts pages to screen readers and slow connections."""
    # An empty heading is invalid, and the first column of some tables has no heading.
    html = html.replace("<th></th>", "<td></td>")
    # Pictures are fetched when they are near.
    return html.replace("<img ", '<img loading="lazy" ')


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Names the dialog of the search, which the theme leaves without a name."""
    return _named_search(output)


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """Names the dialog of the search on the page for missing ones."""
    return _named_search(output_content)


def _named_search(html: str) -> str:
    return html.replace('class="md-search"', 'class="md-search" aria-label="Search"')


def _targets(name: str, markdown: str) -> Iterator[str]:
    for found in _LINK.finditer(markdown):
        if (target := _target(name, found[1])) is not None:
            yield target


def _target(name: str, link: str) -> str | None:
    """Repository file of a site page's link, without its anchor; None if there is none."""
    if ":" in link or name in PACKAGES.values():
        return None
    sources = {page: source for source, page in ELSEWHERE.items()}
    source = sources.get(name, f"docs/{name}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _place_in_site(target: str, files: Files) -> str | None:
    """Location of a repository file in the site; None if it is not part of it."""
    if target in ELSEWHERE:
        return ELSEWHERE[target]
    inside = target.removeprefix("docs/")
    return inside if inside != target and files.get_file_from_path(inside) else None


def _lists_apart(markdown: str) -> str:
    """A page with an empty line between a paragraph and a list; GitHub needs none."""
    lines: list[str] = []
    in_code = in_list = False
    for line in markdown.splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
        is_item = not in_code and line.startswith("- ")
        if is_item and not in_list and lines and lines[-1]:
            lines.append("")
        # A list ends at an unindented line after an empty one.
        ends = bool(line) and not line.startswith((" ", "- ")) and lines[-1:] in ([], [""])
        in_list = is_item or (in_list and not ends)
        lines.append(line)
    return "\n".join(lines) + "\n"


def _reference(package: str) -> str:
    """A page of a package's public names: classes first, then functions."""
    names = public_names(package)
    lines = [f"# {package}", "", f"Everything that is imported from `{package}`.", ""]
    for name in sorted(names, key=lambda name: (name[0].islower(), name)):
        lines += [f"::: {package}.{name}", ""]
    return "\n".join(lines)


def public_names(package: str) -> list[str]:
    """`__all__` of a package, without its import."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return list(names)


def _linked_names(markdown: str) -> str:
    """The page of public names, each with a link to its reference."""
    names = {*public_names("sharded_infer")}

    def linked(found: re.Match[str]) -> str:
        name = found[1]
        return f"[`{name}`][sharded_infer.{name}]" if name in names else found[0]

    head, title, section = markdown.partition("## Public names")
    return head + title + _NAME.sub(linked, section)
