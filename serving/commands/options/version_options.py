"""The options that name a published version."""

from typing import Annotated

import typer

RepositoryOption = Annotated[
    str,
    typer.Option(
        "--repository",
        "-r",
        metavar="REPO",
        help="Where versions are published: a folder, or a URL such as s3://bucket/prefix.",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Model; may be left out if there is only one.")
]
VersionOption = Annotated[int | None, typer.Option("--version", help="Version; default: latest.")]
