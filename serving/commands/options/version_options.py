"""The options that name a published version, and keys of its signatures."""

from pathlib import Path
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
SignKeyOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--sign-key",
        metavar="FILE",
        help="Private key (ed25519, PEM) that signs the version; may be repeated.",
    ),
]
TrustedKeyOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--trusted-key",
        metavar="FILE",
        help="Public keys (ed25519, PEM), one of which must have signed the version; may be "
        "repeated.",
    ),
]
