"""The benchmarks, as commands under `bench`."""

import typer

from serving.commands.bench_plan import bench_plan_command

bench_app = typer.Typer(no_args_is_help=True, help="Measure this project beside its peers.")
bench_app.command("plan")(bench_plan_command)
