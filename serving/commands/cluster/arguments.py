"""The argument of the commands about a cluster."""

from pathlib import Path
from typing import Annotated

import typer

FileArgument = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="TOML file of the cluster, such as cluster.toml."),
]
