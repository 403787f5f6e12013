"""The options of commands that print or write JSON for scripts."""

from pathlib import Path
from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
# For commands whose figures are kept, in addition to what they print.
JsonFileOption = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Also write the figures to this file as JSON; -: print them as the last line.",
    ),
]
