"""The benchmarks, as commands.

python -m benchmarks NAME [OPTIONS]
"""

import typer

from serving.cli import run
from serving.commands.lazy_group import CommandEntry, lazy_group

COMMANDS = (
    CommandEntry(
        "plan",
        "benchmarks.plan.plan:plan_command",
        "Measure the planner's time and the quality of its plans.",
    ),
    CommandEntry(
        "formats",
        "benchmarks.parts.formats:formats_command",
        "Measure AUC, log loss and score differences of a trained model.",
    ),
    CommandEntry(
        "ids",
        "benchmarks.parts.ids:ids_command",
        "Measure the index of raw ids beside a gather.",
    ),
    CommandEntry(
        "tiers",
        "benchmarks.tiers.tiers:tiers_command",
        "Measure a table larger than memory, ordered and not.",
    ),
    CommandEntry(
        "quantize",
        "benchmarks.parts.quantize:quantize_command",
        "Measure quantization from a checkpoint to tables.",
    ),
    CommandEntry(
        "decode",
        "benchmarks.parts.decode:decode_command",
        "Measure decoding beside protobuf's parsing and a plain loop.",
    ),
    CommandEntry(
        "ranking",
        "benchmarks.parts.ranking:ranking_command",
        "Measure a user's features sent once beside sent for every pair.",
    ),
    CommandEntry(
        "peers",
        "benchmarks.peers.peers:peers_command",
        "Measure our server beside Triton with TorchRec's model behind it.",
    ),
    CommandEntry(
        "executors",
        "benchmarks.servers.executors:executors_command",
        "Measure the executors inline, batched and auto beside each other.",
    ),
    CommandEntry(
        "cluster",
        "benchmarks.cluster.cluster:cluster_command",
        "Measure a plan over several hosts beside one process.",
    ),
    CommandEntry(
        "releases",
        "benchmarks.releases.command:releases_command",
        "Measure latency while a version is loaded.",
    ),
    CommandEntry(
        "sequences",
        "benchmarks.sequences.command:sequences_command",
        "Measure servers of towers over users' histories.",
    ),
    CommandEntry(
        "metrics",
        "benchmarks.servers.metrics:metrics_command",
        "Measure throughput with all metrics and with none.",
    ),
)

app = typer.Typer(
    name="python -m benchmarks",
    cls=lazy_group(*COMMANDS),
    help="Measure this project beside its peers and the machine's limits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _before() -> None:
    """What stands before a name."""


def main() -> None:
    """Run the benchmark that the command line names."""
    run(app)


if __name__ == "__main__":
    main()
