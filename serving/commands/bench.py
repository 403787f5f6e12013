"""The benchmarks, as commands under `bench`."""

import typer

from serving.commands.bench_decode import bench_decode_command
from serving.commands.bench_engine import bench_engine_command
from serving.commands.bench_executors import bench_executors_command
from serving.commands.bench_formats import bench_formats_command
from serving.commands.bench_lookup import bench_lookup_command
from serving.commands.bench_metrics import bench_metrics_command
from serving.commands.bench_plan import bench_plan_command
from serving.commands.bench_quantize import bench_quantize_command
from serving.commands.bench_releases import bench_releases_command
from serving.commands.bench_serve import bench_serve_command

bench_app = typer.Typer(no_args_is_help=True, help="Measure this project beside its peers.")
bench_app.command("plan")(bench_plan_command)
bench_app.command("formats")(bench_formats_command)
bench_app.command("lookup")(bench_lookup_command)
bench_app.command("quantize")(bench_quantize_command)
bench_app.command("decode")(bench_decode_command)
bench_app.command("engine")(bench_engine_command)
bench_app.command("serve")(bench_serve_command)
bench_app.command("executors")(bench_executors_command)
bench_app.command("releases")(bench_releases_command)
bench_app.command("metrics")(bench_metrics_command)
