"""The `sharded-infer` command: the composition root."""

import os
import sys
from typing import Annotated

import typer

from serving.commands.console import ERRORS, say
from serving.commands.lazy_group import command_entries, lazy_group
from serving.host.installation import check_compiled, installation_text
from sharded_infer.errors import ShardedInferError

COMMANDS = command_entries(
    "serving.commands",
    "",
    {
        "spec": ("models.spec", "Draft a model.toml from a checkpoint's names and shapes."),
        "quantize": ("models.quantization", "Quantize a model's tables into a folder."),
        "publish": ("models.publish", "Quantize, plan and publish a model as its next version."),
        "inspect": (
            "models.version",
            "Show a version's tables, sizes, plans, tower and signatures.",
        ),
        "verify": ("models.version", "Check every file and plan, then score the golden requests."),
        "predict": ("predict", "Score samples from a file."),
        "serve": ("serve", "Serve published models over gRPC and REST."),
        "serve-shards": ("serve", "Answer lookups of one host of a plan."),
        "doctor": ("doctor", "Check the installation, the machine and the ports."),
        "plan": ("models.plan", "Plan where every table goes, and explain it."),
        "calibrate": ("calibrate", "Measure this machine's constants for the planner."),
        "demo": ("demo", "Train a model on logs, publish, serve and score it."),
        "repo": (
            "groups:repo_app",
            "Show versions and labels, move labels, clean up a repository.",
        ),
        "cluster": ("groups:cluster_app", "Run shard hosts and fronts on several machines."),
        "record": (
            "groups:record_app",
            "Show, sample, compare and remove what servers recorded.",
        ),
        "bench": ("groups:bench_app", "Measure lookups, engines and servers on this machine."),
    },
)

app = typer.Typer(
    name="sharded-infer",
    cls=lazy_group(*COMMANDS),
    help="Quantize, plan, publish and serve recommendation models with large embedding tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        say(installation_text())
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version, its platform and which parts are compiled.",
            callback=_say_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """What stands before a command."""
    check_compiled()


def main() -> None:
    """Runs the command."""
    run(app)


def run(commands: typer.Typer) -> None:
    """Runs commands; the project's errors become one line on stderr and exit code 1."""
    # Read when gRPC is imported. Its C code writes beside the log, as often as clients cause it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        commands()
    except ShardedInferError as error:
        _refuse(str(error))
    except OSError as error:
        # Of a file that the command line names, whatever its fault.
        named = f"{error.filename}: " if error.filename is not None else ""
        _refuse(f"{named}{error.strerror or error}")


def _refuse(message: str) -> None:
    ERRORS.print(f"error: {message}", soft_wrap=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
