"""Drafts a model's description from its checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from serving.commands.console import ERRORS, write_target
from serving.commands.lazy_group import load_by_name
from sharded_infer.errors import SpecError


def spec_command(
    checkpoint: Annotated[
        Path, typer.Option("--from", help="Trained weights: anything that publish reads.")
    ],
    name: Annotated[str, typer.Option(help="The model's name.")] = "model",
    out: Annotated[
        Path | None, typer.Option(help="File to write, such as model.toml; default: print it.")
    ] = None,
    max_length: Annotated[
        int, typer.Option(help="Ids of each sequence: a feature of an EmbeddingCollection.")
    ] = 200,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Draft a model.toml from a checkpoint's names and shapes.

    Finds tables with their rows and dims, and the tower of a TorchRec DLRM or DLRM_DCN. Everything
    else is a guess marked CHECK, above all the features of each table and their pooling.
    """
    if out is not None and out.exists() and not force:
        raise SpecError(f"{out}: exists; --force overwrites it")
    source = load_by_name("quant.sources.checkpoint:open_weights")(checkpoint)
    draft = load_by_name("sharded_infer.importing.spec_draft:draft_spec")(
        source, name, max_length=max_length
    )
    if out is None:
        typer.echo(draft, nl=False)
    else:
        write_target(out, draft)
    checks = load_by_name("sharded_infer.importing.spec_draft:count_checks")(draft)
    tables = draft.split("\n").count("[[tables]]")
    ERRORS.print(
        f"tables: {tables}; lines to CHECK: {checks}"
        + ("" if out is None else f"; written to {out}"),
        soft_wrap=True,
    )
