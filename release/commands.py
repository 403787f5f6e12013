"""External commands, whose failure ends the release."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_LINES = 30


class ReleaseError(Exception):
    """A release that cannot be made."""


def run(
    words: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None
) -> str:
    """Runs a command and returns its standard output; raises ReleaseError if it fails."""
    done = subprocess.run(  # noqa: S603 - ours
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-_LINES:])
        raise ReleaseError(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{said}")
    return done.stdout
