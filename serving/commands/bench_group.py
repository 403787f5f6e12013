"""The `bench` group: benchmarks that size machines."""

import typer

from serving.commands.lazy_group import CommandEntry, lazy_group

BENCH_COMMANDS = (
    CommandEntry(
        "lookup",
        "serving.commands.bench.bench_lookup:bench_lookup_command",
        "Measure pooled lookups beside FBGEMM's kernel.",
    ),
    CommandEntry(
        "engine",
        "serving.commands.bench.bench_engine:bench_engine_command",
        "Measure lookups and tower on one core, beside TorchRec.",
    ),
    CommandEntry(
        "serve",
        "serving.commands.bench.bench_serve:bench_serve_command",
        "Measure a server under load.",
    ),
)

bench_app = typer.Typer(
    cls=lazy_group(*BENCH_COMMANDS),
    no_args_is_help=True,
    help="Measure lookups, engines and servers on this machine.",
    rich_markup_mode=None,
)
