"""The `sharded-infer` command: where everything is put together."""

import sys

import typer

from serving.commands.bench import bench_app
from serving.commands.calibrate import calibrate_command
from serving.commands.console import ERRORS
from serving.commands.demo import demo_command
from serving.commands.doctor import doctor_command
from serving.commands.inspect import inspect_command
from serving.commands.plan import plan_command
from serving.commands.predict import predict_command
from serving.commands.publish import publish_command
from serving.commands.quantize import quantize_command
from serving.commands.repo import repo_app
from serving.commands.serve import serve_command
from serving.commands.spec import spec_command
from serving.commands.verify import verify_command
from sharded_infer.errors import ShardedInferError

app = typer.Typer(
    name="sharded-infer",
    help="Quantize, plan, publish and serve recommendation models with large embedding tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("spec")(spec_command)
app.command("quantize")(quantize_command)
app.command("publish")(publish_command)
app.command("inspect")(inspect_command)
app.command("verify")(verify_command)
app.command("predict")(predict_command)
app.command("serve")(serve_command)
app.command("doctor")(doctor_command)
app.command("plan")(plan_command)
app.command("calibrate")(calibrate_command)
app.command("demo")(demo_command)
app.add_typer(repo_app, name="repo")
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Runs the command; what the project refuses is one line on stderr and exit code 1."""
    try:
        app()
    except ShardedInferError as error:
        ERRORS.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
