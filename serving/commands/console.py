"""What commands print: tables for people, JSON for scripts."""

import json

from rich.console import Console

OUT = Console()
ERRORS = Console(stderr=True)


def print_json(fields: object) -> None:
    """Prints one line of JSON, at once: a script may be waiting for it."""
    print(json.dumps(fields), flush=True)  # noqa: T201 - output for scripts
