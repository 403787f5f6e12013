import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from typer.main import get_command

import sharded_infer
from benchmarks.__main__ import app as benchmarks
from serving.cli import app
from sharded_infer.inputs.request_reader import RequestReader
from sharded_infer.samples.request import batch_samples
from sharded_infer.samples.text import read_json
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    ROOT / "benchmarks" / "README.md",
    *(page for page in (ROOT / "docs").glob("*.md") if page.name != "cli.md"),
]
# After variables that are set for it.
_CALL = re.compile(
    r"(?:\$ )?(?:[A-Z_]+=\S+ )*(sharded-infer|(?:\.venv/bin/)?python -m benchmarks)(?: (.*)|$)"
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("reference", ["cli", "configuration", "operators", "rest_api"])
def test_a_generated_reference_is_what_the_code_says(reference: str) -> None:
    done = subprocess.run(
        [sys.executable, f"docs/generate_{reference}.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_command_is_documented_in_the_readme() -> None:
    reference = (ROOT / "docs" / "cli.md").read_text()
    readme = (ROOT / "README.md").read_text()
    commands = [
        line.split("`")[1].split()[1]
        for line in reference.splitlines()
        if line.startswith("## `sharded-infer ")
    ]
    assert len(commands) >= 7
    missing = [command for command in commands if f"sharded-infer {command}" not in readme]
    assert missing == []


def _headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("#")]
    titles = [line.lstrip("#").strip().lower() for line in lines]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_finds_it_and_its_heading(page: Path) -> None:
    missing = []
    for link in _LINK.findall(page.read_text()):
        if link.startswith(("http:", "https:")):
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (heading and heading not in _headings(target)):
            missing.append(link)
    assert missing == []


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in readme] == []


def _console_lines(page: Path) -> Iterator[tuple[Any, list[str]]]:
    """Each command of ours in a page's console blocks, and the words behind it."""
    for block in re.findall(r"```(?:console|sh)\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if called := _CALL.match(line):
                commands = app if called[1] == "sharded-infer" else benchmarks
                yield get_command(commands), shlex.split(called[2] or "", comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_console_blocks_have_the_options_that_are_shown(page: Path) -> None:
    wrong = []
    for command, words in _console_lines(page):
        while hasattr(command, "commands") and words:
            name, *words = words
            # The group's own lists are names alone until a command is asked for.
            command = command.get_command(click.Context(command), name)
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        wrong += [(command.name, option) for option in options if option not in known]
    assert wrong == []


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_the_samples_of_the_page_are_read_as_it_says() -> None:
    page = (ROOT / "docs" / "requests.md").read_text()
    (block,) = [block for block in _blocks(page, "json") if '"item"' in block]
    first, second = read_json(block)
    assert first["user"] == [7, 42, 9] and "user" not in second
    spec = ModelSpec(
        name="ranker",
        tables=(TableSpec("item", rows=100, dim=8), TableSpec("user", rows=100, dim=8)),
        dense=DenseSpec({"dense": 13}),
        tower=TowerSpec(outputs=("score",)),
    )
    inputs = batch_samples(spec, [first, second])
    assert inputs["user.lengths"].tolist() == [3, 0] and inputs["dense"].shape == (2, 13)


@pytest.mark.parametrize(
    ("form", "name", "shape"),
    [
        ("a feature `f`", "f", " `[B]`, `[B, 1]`"),
        ("`f` and `f.lengths`", "f.lengths", " `[B]`"),
        ("`f.weights`", "f.weights", ", shaped as `f`"),
        ("`sparse.values`, `sparse.lengths`", "sparse.lengths", " `[S, B]`"),
    ],
)
def test_the_datatypes_of_the_page_are_those_that_are_accepted(
    form: str, name: str, shape: str
) -> None:
    page = (ROOT / "docs" / "requests.md").read_text()
    reader = RequestReader(ModelSpec("m", (TableSpec("f", rows=9, dim=1),)))
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {form} |")]
    assert f"{reader.datatypes(name)}{shape}" in row


def test_the_notebook_is_typed_as_strictly_as_its_user_wants(tmp_path: Path) -> None:
    blocks = _blocks((ROOT / "docs" / "python.md").read_text(), "python")
    (tmp_path / "notebook.py").write_text(next(b for b in blocks if "open_model" in b))
    # Of their packages nothing is looked at: pandas has no types of its own.
    words = ("--strict", "--follow-imports", "silent", "--disable-error-code", "import-untyped")
    cache = ("--cache-dir", str(ROOT / ".mypy_cache" / "notebook"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, *cache, "notebook.py"],
        env={**os.environ, "MYPYPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_name_of_the_python_page_is_exported_and_every_export_is_on_it() -> None:
    page = (ROOT / "docs" / "python-api.md").read_text()
    section = page[page.index("## Public names") :]
    named = set(re.findall(r"`([A-Za-z_]+)`", section)) - {"predict", "fetch", "to_toml"}
    assert named == set(sharded_infer.__all__)
    assert all(getattr(sharded_infer, name).__doc__ for name in sharded_infer.__all__)
