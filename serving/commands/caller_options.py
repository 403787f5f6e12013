"""Options of commands that call a running server: TLS, a certificate, a token."""

import os
from pathlib import Path
from typing import Annotated

import typer

from serving.caller import TOKEN_VARIABLE, Caller, CallerFiles, read_caller

TlsOption = Annotated[
    bool,
    typer.Option("--tls", help="Over TLS; the server's certificate must be a public authority's."),
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Over TLS; PEM file of the authorities that sign the server's certificate.",
    ),
]
TlsCertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-certificate",
        metavar="FILE",
        help="PEM file of the certificates to show to the server (mTLS).",
    ),
]
TlsKeyOption = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="PEM file of the certificate's private key."),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"File of the token to send, alone; default: the variable {TOKEN_VARIABLE}.",
    ),
]


def caller_of(files: CallerFiles) -> Caller:
    """Who a command is, by its options and its environment.

    Raises:
        InputError: a file cannot be read, is not what it should be, or lacks its fellow.
    """
    return read_caller(files, os.environ)
