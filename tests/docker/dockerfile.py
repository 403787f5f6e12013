"""The Dockerfile's instructions, by the stages that they make."""

from pathlib import Path

from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"


def instructions() -> list[dict[str, str]]:
    """What the file says, without its comments."""
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
    """What a stage's instructions of one kind say, in their order."""
    return [value for kind, value in whole(stage) if kind == instruction]
