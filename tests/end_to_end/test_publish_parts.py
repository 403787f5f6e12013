"""`publish --part` and `--join`, in processes of their own as on several machines."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sharded_infer.files.toml_file import toml_text
from sharded_infer.repositories.repository import Repository
from sharded_infer.zoo.dlrm import DLRM
from tests.support.servers import Command, run

ROWS = {"ads": 70_000, "user": 50_000, "flag": 1, "shop": 40_001}
FORMATS = {"ads": "int8", "user": "int4", "flag": "int8", "shop": "bf16"}
LAYERS: dict[str, list[int]] = {"bottom": [16, 32], "top": [16, 1]}


@pytest.fixture
def publishing(tmp_path: Path) -> tuple[object, ...]:
    """The command line of a publish, without its repository."""
    tables = [{"name": n, "rows": r, "dim": 32, "format": FORMATS[n]} for n, r in ROWS.items()]
    described = {
        "name": "ranker",
        "tables": tables,
        "dense": {"inputs": {"dense": 4}},
        "tower": {"architecture": "dlrm", **LAYERS},
    }
    spec, stored = tmp_path / "model.toml", tmp_path / "weights.safetensors"
    spec.write_text(toml_text(described))
    generator = torch.Generator().manual_seed(1)
    weights = {
        f"{name}.weight": torch.randn(rows, 32, generator=generator) / 40
        for name, rows in ROWS.items()
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        tower = DLRM(dense_width=4, feature_dims=[32] * len(ROWS), **LAYERS)
    weights |= {f"tower.{name}": value.detach() for name, value in tower.state_dict().items()}
    save_file(weights, stored)
    return ("publish", "--spec", spec, "--weights", stored)


def manifest_of(repository: Repository, version: int) -> dict[str, Any]:
    path = repository.fetch("ranker", version) / "manifest.json"
    fields: dict[str, Any] = json.loads(path.read_text())
    return {k: v for k, v in fields.items() if k not in ("created_at", "version", "sha256")}


def test_processes_publish_parts_at_once_and_one_joins_them(
    publishing: tuple[object, ...], location: str
) -> None:
    words, parts = (*publishing, "-r", location, "--json"), ("1/3", "2/3", "3/3", "2/3")
    with ThreadPoolExecutor(len(parts)) as threads:
        made = list(threads.map(lambda part: run(*words, "--part", part, seconds=600), parts))
    assert [done.returncode for done in made] == [0] * 4, made
    told = [json.loads(done.stdout) for done in made]
    assert [(one["model"], one["part"], one["parts"]) for one in told] == [
        ("ranker", int(part[0]), 3) for part in parts
    ]
    assert told[1] == told[3]
    assert sum(one["rows"] for one in told[:3]) == sum(ROWS.values())
    joined = run(*words, "--join", 3, "--note", "in parts", seconds=600)
    assert joined.returncode == 0, joined.stderr
    whole = run(*words, "--note", "in parts", seconds=600)
    assert whole.returncode == 0, whole.stderr
    first, second = json.loads(joined.stdout), json.loads(whole.stdout)
    assert (first.pop("version"), second.pop("version")) == (1, 2)
    assert first.pop("path") != second.pop("path")
    assert first == second
    repository = Repository(location)
    assert manifest_of(repository, 1) == manifest_of(repository, 2)


def test_what_a_part_holds_is_said_in_words(
    publishing: tuple[object, ...], tmp_path: Path, sharded_infer: Command
) -> None:
    words = (*publishing, "-r", tmp_path / "models")
    done = sharded_infer(*words, "--part", "1/2")
    assert done.code == 0
    assert "stored part 1/2 of ranker: " in done.out and " rows of 2 table files, " in done.out
    folder = Path(done.out.splitlines()[-1])
    assert folder.parent == tmp_path / "models" / "ranker"
    assert (folder / "part.json").is_file()
    sharded_infer(*words, "--join", 2).refused("part 2/2 is missing", "same spec, weights")


@pytest.mark.parametrize("part", ["", "2", "1/0", "0/2", "3/2", "1/2/3", "-1/2", "a/b", "1/99999"])
def test_text_that_names_no_part_is_refused(
    part: str, publishing: tuple[object, ...], tmp_path: Path, sharded_infer: Command
) -> None:
    sharded_infer(*publishing, "-r", tmp_path, "--part", part).refused("part", ": expected ")


@pytest.mark.parametrize(
    "more",
    [("--topology", "cpu:2"), ("--note", "n"), ("--run-id", "7"), ("--join", "2")],
    ids=lambda more: more[0],
)
def test_a_part_takes_no_option_of_the_joining_step(
    more: tuple[str, str],
    publishing: tuple[object, ...],
    tmp_path: Path,
    sharded_infer: Command,
) -> None:
    words = (*publishing, "-r", tmp_path, "--part", "1/2", *more)
    sharded_infer(*words).refused(f"{more[0]} is for the step that joins the parts")
