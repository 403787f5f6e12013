import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("reference", ["cli", "configuration"])
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


def test_the_architecture_page_stays_one_page() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 80


def test_the_architecture_page_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for package in ("kernels", "quant", "sharded_infer", "serving"):
        assert f"`{package}`" in text
