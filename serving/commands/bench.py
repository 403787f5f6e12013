"""The benchmarks, as commands under `bench`."""

import typer

from serving.commands.lazy_group import CommandEntry, lazy_group

BENCH_COMMANDS = (
    CommandEntry(
        "plan",
        "serving.commands.bench_plan:bench_plan_command",
        "Measure the planner's time and the quality of its plans.",
    ),
    CommandEntry(
        "formats",
        "serving.commands.bench_formats:bench_formats_command",
        "Measure AUC, log loss and score differences of a trained model.",
    ),
    CommandEntry(
        "lookup",
        "serving.commands.bench_lookup:bench_lookup_command",
        "Measure pooled lookups beside FBGEMM's kernel.",
    ),
    CommandEntry(
        "quantize",
        "serving.commands.bench_quantize:bench_quantize_command",
        "Measure quantization from a checkpoint to tables.",
    ),
    CommandEntry(
        "decode",
        "serving.commands.bench_decode:bench_decode_command",
        "Measure decoding beside protobuf's parsing and a plain loop.",
    ),
    CommandEntry(
        "engine",
        "serving.commands.bench_engine:bench_engine_command",
        "Measure lookups and tower on one core, beside TorchRec.",
    ),
    CommandEntry(
        "serve",
        "serving.commands.bench_serve:bench_serve_command",
        "Measure a server under load.",
    ),
    CommandEntry(
        "executors",
        "serving.commands.bench_executors:bench_executors_command",
        "Measure inline, batched and auto executors beside each other.",
    ),
    CommandEntry(
        "releases",
        "serving.commands.bench_releases:bench_releases_command",
        "Measure latency while a version is loaded.",
    ),
    CommandEntry(
        "metrics",
        "serving.commands.bench_metrics:bench_metrics_command",
        "Measure throughput with all metrics and with none.",
    ),
)

bench_app = typer.Typer(
    cls=lazy_group(*BENCH_COMMANDS),
    no_args_is_help=True,
    help="Measure this project beside its peers.",
    rich_markup_mode=None,
)
