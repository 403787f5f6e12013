"""The Dockerfile's instructions, by the stages that they make, and programs of others."""

import subprocess
from pathlib import Path
from typing import Any

from dockerfile_parse import DockerfileParser


def output_of(*words: object, **options: Any) -> str:
    """Standard output of a program, which must succeed; `options` are of `subprocess.run`."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run([*map(str, words)], check=False, **(streams | options))
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{(done.stderr or '')[-3000:]}"
    return str(done.stdout)


ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"


def instructions() -> list[dict[str, str]]:
    parser = DockerfileParser(path=str(DOCKER / "Dockerfile"), cache_content=True)
    structure: list[dict[str, str]] = parser.structure
    return [one for one in structure if one["instruction"] != "COMMENT"]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage by its name; a stage begins with its FROM."""
    found: dict[str, list[tuple[str, str]]] = {"": []}
    name = ""
    for one in instructions():
        if one["instruction"] == "FROM":
            name = one["value"].rsplit(" AS ", 1)[1]
            found[name] = []
        found[name].append((one["instruction"], one["value"]))
    return found


def whole(name: str) -> list[tuple[str, str]]:
    """A stage's instructions after those of the stages that it is made from."""
    all_stages = stages()
    base = all_stages[name][0][1].rsplit(" AS ", 1)[0]
    before = whole(base) if base in all_stages else []
    return [*before, *all_stages[name]]


def values(stage: str, instruction: str) -> list[str]:
    return [value for kind, value in whole(stage) if kind == instruction]
