"""Options of commands that call a running server: TLS, a certificate, a token."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

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
    """Options of credentials, one a field."""

    tls: Annotated[
        bool,
        typer.Option(
            "--tls", help="Use TLS; the server's certificate must come from a public authority."
        ),
    ] = False
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            help="Use TLS; PEM file of the authorities that sign the server's certificate.",
        ),
    ] = None
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            "--tls-certificate",
            metavar="FILE",
            help="PEM file of the certificates to show to the server (mTLS).",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key", metavar="FILE", help="PEM file of the certificate's private key."
        ),
    ] = None
    token_file: TokenFileOption = None

    def files(self) -> CallerFiles:
        """Named files."""
        return CallerFiles(
            self.tls, self.tls_ca, self.tls_certificate, self.tls_key, self.token_file
        )


def caller_of(files: CallerFiles) -> Caller:
    """Read a command's credentials from options and environment; InputError for unusable files."""
    return read_caller(files, os.environ)
