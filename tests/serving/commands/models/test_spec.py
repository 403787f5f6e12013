import tomllib
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from serving.commands.models.spec import spec_command
from sharded_infer.errors import SpecError
from sharded_infer.specs.spec_file import load_spec, parse_spec


def run(*words: object) -> Result:
    app = typer.Typer()
    app.command()(spec_command)
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "weights.pt"
    torch.save({"embedding_bags.ads.weight": torch.zeros(9, 4)}, path)
    return path


def test_the_draft_is_printed_and_its_checks_are_counted_beside_it(checkpoint: Path) -> None:
    done = run("--from", checkpoint, "--name", "clicks")
    assert done.exit_code == 0, done.output
    spec = parse_spec(tomllib.loads(done.stdout))
    assert spec.name == "clicks"
    assert [(table.name, table.rows, table.dim) for table in spec.tables] == [("ads", 9, 4)]
    assert done.stderr == f"tables: 1; lines to CHECK: {done.stdout.count('# CHECK: ')}\n"


def test_a_file_is_overwritten_only_when_told(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.toml"
    out.write_text("mine")
    with pytest.raises(SpecError, match=r"model\.toml: exists; --force overwrites it"):
        raise run("--from", checkpoint, "--out", out).exception or AssertionError
    assert out.read_text() == "mine"
    done = run("--from", checkpoint, "--out", out, "--force")
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"; written to {out}" in done.stderr
    assert load_spec(out).tables[0].name == "ads"
