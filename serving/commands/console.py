"""What commands print: tables for people, JSON for scripts."""

import json

from rich.console import Console

OUT = Console()
ERRORS = Console(stderr=True)


def print_json(fields: object) -> None:
    """Prints one line of JSON, at once: a script may be waiting for it."""
    print(json.dumps(fields), flush=True)  # noqa: T201 - output for scripts


def size(count: int) -> str:
    """Bytes as people read them, in powers of 1000."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
