"""Options of commands that call a running server: TLS, a certificate, a token."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.remote.caller import TOKEN_VARIABLE, Caller, CallerFiles, read_caller

TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"File that contains only the token to send; default: the variable {TOKEN_VARIABLE}.",
    ),
]


@dataclass(frozen=True, slots=True)
class CallerOptions:
    """Options of credentials: the fields of `CallerFiles`."""

    tls: Annotated[
        bool,
        typer.Option(
            "--tls", help="Use TLS; the server's certificate must come from a public authority."
        ),
    ] = False
    ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            help="Use TLS; PEM file of the authorities that sign the server's certificate.",
        ),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--tls-certificate",
            metavar="FILE",
            help="PEM file of the certificates to show to the server (mTLS).",
        ),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key", metavar="FILE", help="PEM file of the certificate's private key."
        ),
    ] = None
    token: TokenFileOption = None


def caller_of(credentials: Mapping[str, Any]) -> Caller:
    """Read credentials of `CallerOptions` and the environment; InputError for unusable files."""
    return read_caller(CallerFiles(**credentials), os.environ)
