"""The benchmarks, as commands.

python -m benchmarks NAME [OPTIONS]
"""

import typer

from serving.cli import run
from serving.commands.lazy_group import CommandEntry, lazy_group

COMMANDS = tuple(
    CommandEntry(name, f"benchmarks.{module}:{name}_command", summary)
    for name, module, summary in (
        ("plan", "plan.plan", "Measure the planner's time and the quality of its plans."),
        (
            "formats",
            "parts.formats",
            "Measure AUC, log loss and score differences of a trained model.",
        ),
        ("ids", "parts.ids", "Measure the index of raw ids beside a gather."),
        ("tiers", "tiers.tiers", "Measure a table larger than memory, ordered and not."),
        ("quantize", "parts.quantize", "Measure quantization from a checkpoint to tables."),
        ("decode", "parts.decode", "Measure decoding beside protobuf's parsing and a plain loop."),
        (
            "ranking",
            "parts.ranking",
            "Measure a user's features sent once beside sent for every pair.",
        ),
        (
            "peers",
            "peers.peers",
            "Measure our server beside Triton with TorchRec's model behind it.",
        ),
        (
            "executors",
            "servers.executors",
            "Measure the executors inline, batched and auto beside each other.",
        ),
        ("cluster", "cluster.cluster", "Measure a plan over several hosts beside one process."),
        ("releases", "releases.releases", "Measure latency while a version is loaded."),
        ("sequences", "sequences.command", "Measure servers of towers over users' histories."),
        ("metrics", "servers.metrics", "Measure throughput with all metrics and with none."),
    )
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
    """Have a name for each benchmark, even if there is only one."""


def main() -> None:
    """Run the benchmark that the command line names."""
    run(app)


if __name__ == "__main__":
    main()
