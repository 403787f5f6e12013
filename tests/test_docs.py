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
import torch
from typer.main import get_command

import sharded_infer
from benchmarks.__main__ import app as benchmarks
from quant.sources.checkpoint import open_weights
from serving.cli import app
from sharded_infer.importing.tower_source import load_tower
from sharded_infer.inputs.request_reader import RequestReader
from sharded_infer.publishing.publication import publish
from sharded_infer.samples.request import batch_samples
from sharded_infer.samples.text import read_json
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.spec_file import load_spec

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


def test_the_example_of_export_tower_makes_a_tower_that_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "model-toml.md").read_text()
    (code,) = [block for block in _blocks(page, "python") if "export_tower" in block]
    (tower,) = [block for block in _blocks(page, "toml") if block.startswith("[tower]\nprogram")]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/model-toml.md", "exec"), {})  # noqa: S102 - our own page
    spec_path = tmp_path / "model.toml"
    tables = "".join(
        f'[[tables]]\nname = "{name}"\nrows = 20\ndim = 64\n' for name in ("item", "user")
    )
    spec_path.write_text(f'name = "own"\n{tables}[dense]\ninputs = {{ dense = 13 }}\n{tower}')
    spec = load_spec(spec_path)
    checkpoint = tmp_path / "checkpoint.pt"
    torch.save({f"{name}.weight": torch.randn(20, 64) for name in ("item", "user")}, checkpoint)
    source = open_weights(checkpoint)
    loaded = load_tower(spec, source, tmp_path)
    published = publish(spec, source, loaded, tmp_path / "models")
    assert published.version == 1 and published.max_score_diff < 0.05


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


def _notebook() -> str:
    page = (ROOT / "docs" / "python.md").read_text()
    return next(block for block in _blocks(page, "python") if "open_model" in block)


def test_the_notebook_of_the_python_page_runs_and_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cells: dict[str, Any] = {"__name__": "notebook"}
    exec(compile(_notebook(), "docs/python.md", "exec"), cells)  # noqa: S102 - our own page
    clicks, spec, tower = cells["clicks"], cells["spec"], cells["tower"]
    scores = cells["scores"]
    assert scores.shape == (2000,) and cells["one"].shape == (1,)
    # The user's own modules, called as torch calls them.
    bags = [torch.tensor(bag, dtype=torch.int64) for bag in clicks["history"]]
    starts = torch.tensor([0, *(len(bag) for bag in bags[:-1])]).cumsum(0)
    with torch.no_grad():
        tables = cells["tables"]
        embeddings = [
            tables["user"](torch.tensor(clicks["user"].to_numpy())[:, None]),
            tables["item"](torch.tensor(clicks["item"].to_numpy())[:, None]),
            tables["item"](torch.cat(bags), starts),
        ]
        price = torch.tensor(clicks["price"].to_numpy(), dtype=torch.float32)[:, None]
        eager = tower(price, torch.cat(embeddings, dim=1)).numpy()
    assert abs(scores - eager).max() < 1e-2
    published = cells["published"]
    assert published.report.calibration.labelled == 2000
    (tmp_path / "model.toml").write_text(spec.to_toml())
    assert load_spec("model.toml") == spec
    assert "fp32" in capsys.readouterr().out


def test_the_notebook_is_typed_as_strictly_as_its_user_wants(tmp_path: Path) -> None:
    (tmp_path / "notebook.py").write_text(_notebook())
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
