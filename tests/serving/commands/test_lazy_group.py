import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from serving.cli import COMMANDS
from serving.commands.groups import BENCH_COMMANDS, CLUSTER_COMMANDS, REPO_COMMANDS
from serving.commands.lazy_group import CommandEntry, lazy_group, load_by_name
from tests.support.servers import Command, Ranker, environment

ENTRIES = (*COMMANDS, *REPO_COMMANDS, *CLUSTER_COMMANDS, *BENCH_COMMANDS)
# What takes most of a second to import, or more.
HEAVY = {"torch", "fbgemm_gpu", "sympy", "tritonclient"}


def imported_by(*words: object, code: int = 0) -> set[str]:
    """Packages imported by a process that runs a command line with this exit status."""
    script = (
        "import json, sys, serving.cli\n"
        "try:\n    serving.cli.main()\n"
        "finally:\n    print(json.dumps(sorted({n.split('.')[0] for n in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == code, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "--version",
        "repo --help",
        "bench --help",
        "repo gc --help",
        *(f"{entry.name} --help" for entry in COMMANDS if entry.name not in {"demo", "predict"}),
        "serve --print-config --repository here",
    ],
)
def test_help_imports_nothing_heavy(words: str) -> None:
    assert imported_by(*words.split()) & HEAVY == set()


@pytest.mark.parametrize("words", ["--help", "--version"])
def test_what_needs_no_arrays_imports_no_numpy(words: str) -> None:
    assert imported_by(words) & {*HEAVY, "numpy"} == set()


@pytest.mark.parametrize("command", ["publish -r models", "quantize --out tables", "plan"])
def test_a_description_that_is_not_there_is_said_before_anything_heavy_is_imported(
    command: str, tmp_path: Path
) -> None:
    weights = [] if command == "plan" else ["--weights", tmp_path / "w.pt"]
    words = [*command.split(), *weights, "--spec", tmp_path / "absent.toml"]
    assert imported_by(*words, code=1) & HEAVY == set()


def test_planning_takes_no_torch_where_there_are_no_gpus(tmp_path: Path) -> None:
    spec = tmp_path / "model.toml"
    spec.write_text('name = "m"\n[[tables]]\nname = "ads"\nrows = 100\ndim = 8\n')
    for topology in ("cpu:2", "h100:2+cpu:1"):
        assert imported_by("plan", "--spec", spec, "--topology", topology) & HEAVY == set()


def test_asking_a_server_takes_no_torch() -> None:
    assert imported_by("predict", "--help") & HEAVY == {"tritonclient"}


def test_looking_at_a_repository_imports_nothing_heavy(ranker: Ranker) -> None:
    where = ranker.repository
    for words in (("list", where), ("show", where, "ranker", "1"), ("verify", where)):
        found = imported_by("repo", *words)
        assert "rich" in found and found & HEAVY == set()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.target)
def test_a_summary_begins_the_commands_own_help(entry: CommandEntry) -> None:
    target = load_by_name(entry.target)
    told = target.info.help if isinstance(target, typer.Typer) else target.__doc__
    assert " ".join(told.split()).startswith(entry.summary.removesuffix("."))
    assert entry.summary.endswith(".")


@pytest.mark.parametrize("words", ["--help", "repo --help", "cluster --help", "bench --help"])
def test_summaries_stand_whole_on_a_line_of_80_columns(
    words: str, sharded_infer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = sharded_infer(*words.split())
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    entries = {
        "--help": COMMANDS,
        "repo --help": REPO_COMMANDS,
        "cluster --help": CLUSTER_COMMANDS,
        "bench --help": BENCH_COMMANDS,
    }
    assert all(f"{e.name} {e.summary}" in lines for e in entries[words])


def test_every_command_of_a_group_can_be_called_and_a_typo_is_told(sharded_infer: Command) -> None:
    assert "REPO" in sharded_infer("repo", "list", "--help").out
    done = sharded_infer("repo", "lst")
    assert done.code == 2 and "Did you mean 'list'?" in done.err
    done = sharded_infer("serve", "--repositry", "models")
    assert done.code == 2 and "(Possible options: --memory, --record, --repository)" in done.err
    done = sharded_infer("repo", "list", "--memory")
    assert done.code == 2 and "No such option: --memory\n" in done.err


def test_a_command_is_imported_when_it_is_asked_for_and_no_sooner() -> None:
    named = CommandEntry("late", "tests.serving.no_such_module:late_command", "Come late.")
    app = typer.Typer(cls=lazy_group(named), rich_markup_mode=None)
    group = typer.main.get_group(app)
    context = typer.Context(group)
    assert "Come late." in group.get_help(context)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        group.get_command(context, "late")


def test_the_version_is_told_with_what_it_runs_on_and_what_is_compiled(
    sharded_infer: Command,
) -> None:
    done = sharded_infer("--version")
    assert done.code == 0
    first, beside, compiled, *_ = done.out.splitlines()
    assert first.startswith("sharded-infer ")
    assert "Python 3." in beside and "torch 2." in beside
    assert compiled.startswith("compiled: ")
