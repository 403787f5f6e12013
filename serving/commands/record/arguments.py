"""The argument that names a recording."""

from typing import Annotated

import typer

RecordArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECORD", help="Where a server recorded (--record): a folder, or a URL."
    ),
]
