"""Prints some samples of a recording."""

from typing import Annotated

import typer

from serving.commands.console import print_json
from serving.commands.options.version_options import ModelOption
from serving.commands.record.arguments import RecordArgument
from sharded_infer.samples.record import local_record
from sharded_infer.samples.recorded_samples import chosen_samples


def record_sample_command(
    record: RecordArgument,
    rows: Annotated[int, typer.Option("--rows", "-n", help="Samples at most.", min=1)] = 10,
    model: ModelOption = None,
    seed: Annotated[int, typer.Option(help="Of the choice.", min=0)] = 0,
) -> None:
    """Print some samples as lines of JSON, as every command reads them.

    Samples of small and large requests, and of requests with and without unknown ids, are equally
    many where there are enough.
    """
    with local_record(record, model) as folder:
        for cells in chosen_samples(folder, rows, model, seed):
            print_json(cells)
