"""The code blocks of the documentation, and the commands in them.

A block of Python, of console lines or of shell that cannot run in a test has the comment
`<!-- not run: REASON -->` in the line above it.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# cli.md is generated: its console blocks are synopses.
PAGES = (
    "README.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "cli"),
)
RUN = ("console", "python", "sh")
_FENCE = re.compile(r"( *)```(\w*)$")
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: its fence's line and language, and the reason why it is not run, if any."""

    page: str
    line: int
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        """Where it is."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a block, and the lines that the page shows below it."""

    text: str
    output: tuple[str, ...]


def blocks_of(page: str) -> list[Block]:
    """The code blocks of a page, in order."""
    blocks = []
    lines = (ROOT / page).read_text().splitlines()
    above, number = "", 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if opened := _FENCE.match(line):
            first, margin = number, len(opened[1])
            while lines[number].strip() != "```":
                number += 1
            text = "".join(f"{inside[margin:]}\n" for inside in lines[first:number])
            marked = _NOT_RUN.match(above.strip())
            blocks.append(Block(page, first, opened[2], text, marked[1] if marked else ""))
            number += 1
        above = line
    return blocks


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a console or shell block; of a console block with what they print."""
    prompt = "$ " if block.language == "console" else ""
    text = ""
    output: list[str] = []
    for line in block.text.splitlines():
        if _is_open(text):
            text += f"\n{line}"
        elif line.startswith(prompt):
            if text:
                yield Command(text, tuple(output))
            text, output = line.removeprefix(prompt), []
        else:
            output.append(line)
    yield Command(text, tuple(output))


def _is_open(text: str) -> bool:
    """Whether a command goes on in the next line."""
    if text.endswith("\\"):
        return True
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False
