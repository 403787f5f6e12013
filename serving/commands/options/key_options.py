"""The options that name keys of signatures."""

from pathlib import Path
from typing import Annotated

import typer

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
