"""Scores samples from a file."""

from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.commands.console import ERRORS, JsonOption, print_json
from serving.commands.lazy_group import load_by_name
from serving.commands.options.caller_options import CallerOptions, caller_of
from serving.commands.options.option_fields import declare_fields
from serving.commands.options.version_options import AddressOption, ModelOption
from serving.remote.prediction import predict_remote
from sharded_infer.errors import InputError
from sharded_infer.inputs.columns import Columns
from sharded_infer.reports.html.text import visible
from sharded_infer.samples.file import read_samples


def predict_command(
    samples: Annotated[
        Path, typer.Argument(help="Samples: JSON, .csv, .tsv or .parquet; '-' reads stdin.")
    ],
    repository: Annotated[
        str | None,
        typer.Option(
            "--repository",
            "-r",
            metavar="REPO",
            help="Score here, without a server; a folder or URL.",
        ),
    ] = None,
    address: AddressOption = None,
    model: ModelOption = None,
    version: Annotated[
        str | None,
        typer.Option(
            help="Version: a number, a label or latest; default: latest, on a server its default."
        ),
    ] = None,
    tsv: Annotated[bool, typer.Option("--tsv", help="Stdin is TSV; default: JSON.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify/--no-verify",
            help="With --repository: first compare the version's files with its manifest's hashes.",
        ),
    ] = True,
    as_json: JsonOption = False,
    **credentials: Any,
) -> None:
    """Score samples from a file, with a published version or on a running server.

    JSON is an array of objects, or one object a line: {"dense": [0.5, 1.0], "C1": 7, "C2": [3, 1]}.
    CSV and TSV have the inputs' names in their first line. A cell has one or several ids or
    numbers, separated by spaces, commas, semicolons or bars. Parquet has a column for each input.
    Ids are strings where the model hashes them.
    """
    if (repository is None) == (address is None):
        raise InputError("expected one of --repository and --address")

    def read(strings: Container[str]) -> Columns:
        return read_samples(samples, tsv=tsv, strings=strings, model=model)

    if address is not None:
        caller = caller_of(credentials)
        prediction = predict_remote(address, model, version, read, caller=caller)
    elif any(credentials.values()):
        raise InputError(
            "--tls, --tls-ca, --tls-certificate, --tls-key, --token-file need --address"
        )
    else:
        predict_here = load_by_name("serving.commands.opened_version:predict_here")
        prediction = predict_here(repository or ".", model, version, read, verify=verify)
    if prediction.default_tables:
        ERRORS.print(f"warning: default rows of tables {visible(prediction.default_tables)}")
    if as_json:
        print_json(prediction.fields())
        return
    for line in prediction.lines():
        print(line)  # noqa: T201 - output for pipes


declare_fields(predict_command, CallerOptions, before="verify")
