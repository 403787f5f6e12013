"""`publish --part` and `--join`, in processes of their own as on several machines."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharded_infer.repositories.repository import Repository
from tests.support.part_checkpoint import ROWS, manifest_of, write_checkpoint
from tests.support.servers import Command, run


@pytest.fixture(scope="module")
def publishing(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """The command line of a publish, without its repository."""
    return ("publish", *write_checkpoint(tmp_path_factory.mktemp("checkpoint")))


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
    assert first.pop("planning_seconds") > 0 < second.pop("planning_seconds")
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


NO_PARTS = ("", "2", "1/0", "0/2", "3/2", "1/2/3", "-1/2", "a/b", "1/99999")


def test_text_that_names_no_part_is_refused(
    publishing: tuple[object, ...], tmp_path: Path, sharded_infer: Command
) -> None:
    for part in NO_PARTS:
        done = sharded_infer(*publishing, "-r", tmp_path, "--part", part)
        done.refused("part", ": expected ")


def test_a_part_takes_no_option_of_the_joining_step(
    publishing: tuple[object, ...], tmp_path: Path, sharded_infer: Command
) -> None:
    for name, text in (("--note", "n"), ("--run-id", "7"), ("--join", "2")):
        done = sharded_infer(*publishing, "-r", tmp_path, "--part", "1/2", name, text)
        done.refused(f"{name} is for the step that joins the parts")
