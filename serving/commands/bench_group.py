"""The benchmarks, as commands under `bench`."""

import typer

from serving.commands.lazy_group import CommandEntry, lazy_group

BENCH_COMMANDS = (
    CommandEntry(
        "plan",
        "serving.commands.bench.bench_plan:bench_plan_command",
        "Measure the planner's time and the quality of its plans.",
    ),
    CommandEntry(
        "formats",
        "serving.commands.bench.bench_formats:bench_formats_command",
        "Measure AUC, log loss and score differences of a trained model.",
    ),
    CommandEntry(
        "lookup",
        "serving.commands.bench.bench_lookup:bench_lookup_command",
        "Measure pooled lookups beside FBGEMM's kernel.",
    ),
    CommandEntry(
        "ids",
        "serving.commands.bench.bench_ids:bench_ids_command",
        "Measure the index of raw ids beside a gather.",
    ),
    CommandEntry(
        "tiers",
        "serving.commands.bench.bench_tiers:bench_tiers_command",
        "Measure a table larger than memory, ordered and not.",
    ),
    CommandEntry(
        "quantize",
        "serving.commands.bench.bench_quantize:bench_quantize_command",
        "Measure quantization from a checkpoint to tables.",
    ),
    CommandEntry(
        "decode",
        "serving.commands.bench.bench_decode:bench_decode_command",
        "Measure decoding beside protobuf's parsing and a plain loop.",
    ),
    CommandEntry(
        "engine",
        "serving.commands.bench.bench_engine:bench_engine_command",
        "Measure lookups and tower on one core, beside TorchRec.",
    ),
    CommandEntry(
        "ranking",
        "serving.commands.bench.bench_ranking:bench_ranking_command",
        "Measure a user's features sent once beside sent for every pair.",
    ),
    CommandEntry(
        "serve",
        "serving.commands.bench.bench_serve:bench_serve_command",
        "Measure a server under load.",
    ),
    CommandEntry(
        "peers",
        "serving.commands.bench.bench_peers:bench_peers_command",
        "Measure our server beside Triton with TorchRec's model behind it.",
    ),
    CommandEntry(
        "executors",
        "serving.commands.bench.bench_executors:bench_executors_command",
        "Measure the executors inline, batched and auto beside each other.",
    ),
    CommandEntry(
        "cluster",
        "serving.commands.bench.bench_cluster:bench_cluster_command",
        "Measure a plan over several hosts beside one process.",
    ),
    CommandEntry(
        "releases",
        "serving.commands.bench.bench_releases:bench_releases_command",
        "Measure latency while a version is loaded.",
    ),
    CommandEntry(
        "sequences",
        "serving.commands.bench.engine.bench_sequences:bench_sequences_command",
        "Measure servers of towers over users' histories.",
    ),
    CommandEntry(
        "metrics",
        "serving.commands.bench.bench_metrics:bench_metrics_command",
        "Measure throughput with all metrics and with none.",
    ),
)

bench_app = typer.Typer(
    cls=lazy_group(*BENCH_COMMANDS),
    no_args_is_help=True,
    help="Measure this project beside its peers.",
    rich_markup_mode=None,
)
