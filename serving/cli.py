"""The `sharded-infer` command: where everything is put together."""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from quant.source import open_weights
from serving.config import MIB, ServerConfig
from serving.demo.run import DemoResult, run_demo
from serving.doctor import Verdict, examine
from serving.prediction import predict_local, predict_remote
from serving.progress import progress_bars
from serving.samples import read_json, read_tsv
from serving.server import Ready, serve
from sharded_infer.artifact import Artifact, open_artifact, verify_files
from sharded_infer.errors import InputError, NotFoundError, ShardedInferError
from sharded_infer.manifest import manifest_fields
from sharded_infer.model import Model, check_golden
from sharded_infer.publish import publish
from sharded_infer.repository import Repository
from sharded_infer.spec import load_spec
from sharded_infer.tower_source import load_tower

app = typer.Typer(
    name="sharded-infer",
    help="Quantize, plan, publish and serve recommendation models with large embedding tables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_out = Console()
_errors = Console(stderr=True)

RepositoryOption = Annotated[
    Path, typer.Option("--repository", "-r", help="Folder that versions are published in.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Model; may be left out if there is only one.")
]
VersionOption = Annotated[int | None, typer.Option("--version", help="Version; default: latest.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def main() -> None:
    """Runs the command; what the project refuses is one line on stderr and exit code 1."""
    try:
        app()
    except ShardedInferError as error:
        _errors.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


@app.command("publish")
def publish_command(
    spec: Annotated[Path, typer.Option(help="The model's description, model.toml.")],
    weights: Annotated[
        Path, typer.Option(help="Trained weights: .safetensors, or .pt (read without unpickling).")
    ],
    repository: RepositoryOption,
    topology: Annotated[
        list[str] | None,
        typer.Option(help="Layout to plan for, such as cpu:2 or cpu:2x16GB; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Quantize, plan and publish a model as its next version.

    The version is written beside its place, checked against the fp32 model on golden requests, and
    renamed into place. Whatever goes wrong before that leaves the repository as it was.
    """
    described = load_spec(spec)
    source = open_weights(weights)
    tower = load_tower(described, source, spec.parent)
    with progress_bars() as progress:
        published = publish(
            described,
            source,
            tower,
            repository,
            topologies=tuple(topology or ("cpu:1",)),
            progress=progress,
        )
    fields = {
        "model": described.name,
        "version": published.version,
        "path": str(published.path),
        "fp32_bytes": published.fp32_bytes,
        "table_bytes": published.table_bytes,
        "max_score_diff": published.max_score_diff,
    }
    if as_json:
        print(json.dumps(fields))  # noqa: T201 - output for scripts
        return
    _out.print(
        f"published {described.name} version {published.version}: tables "
        f"{_size(published.fp32_bytes)} -> {_size(published.table_bytes)}, golden requests within "
        f"{published.max_score_diff:.2g} of fp32\n{published.path}",
        highlight=False,
        soft_wrap=True,
    )


@app.command("inspect")
def inspect_command(
    repository: RepositoryOption,
    model: ModelOption = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a version holds: tables, sizes, plans and the tower. Reads the manifest only."""
    artifact = _artifact(repository, model, version)
    manifest = artifact.manifest
    if as_json:
        print(json.dumps(manifest_fields(manifest)))  # noqa: T201 - output for scripts
        return
    table = Table(title=f"{manifest.model} version {manifest.version}", title_justify="left")
    for heading in ("table", "rows", "dim", "format", "size", "ranks"):
        table.add_column(heading, justify="left" if heading in {"table", "format"} else "right")
    plan = artifact.plan()
    for stored in manifest.stored_tables().values():
        ranks = sorted({shard.rank for shard in plan.shards if shard.table == stored.name})
        table.add_row(
            stored.name,
            f"{stored.rows:,}",
            str(stored.dim),
            stored.row_format,
            _size(stored.stored_bytes),
            ", ".join(map(str, ranks)),
        )
    _out.print(table)
    outputs = ", ".join(output.name for output in manifest.tower.outputs)
    held = plan.bytes_by_rank(manifest.stored_tables())
    _out.print(
        f"created {manifest.created_at} by "
        f"{', '.join(f'{name} {number}' for name, number in manifest.producer.items())}\n"
        f"tower {manifest.tower.precision}, outputs {outputs}\n"
        f"plans for {', '.join(manifest.plans)}; {plan.topology} holds "
        f"{', '.join(_size(used) for used in held)}\n"
        f"golden requests within {manifest.golden.max_score_diff:.2g} of fp32, "
        f"{manifest.golden.allowed_score_diff:g} allowed\n{artifact.path}",
        highlight=False,
        soft_wrap=True,
    )


@app.command("verify")
def verify_command(
    repository: RepositoryOption,
    model: ModelOption = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every file's size and hash, then every plan, then score the golden requests."""
    artifact = _artifact(repository, model, version)
    with progress_bars() as progress:
        read = verify_files(artifact, progress)
    differences = {name: check_golden(_open(artifact, name)) for name in artifact.manifest.plans}
    fields = {
        "model": artifact.manifest.model,
        "version": artifact.manifest.version,
        "files": len(artifact.manifest.files),
        "bytes": read,
        "max_score_diff": max(differences.values()),
        "plans": list(differences),
    }
    if as_json:
        print(json.dumps(fields))  # noqa: T201 - output for scripts
        return
    _out.print(
        f"{artifact.path}: {len(artifact.manifest.files)} files, {_size(read)}, all as the "
        f"manifest says; golden requests within {max(differences.values()):.2g} of fp32",
        highlight=False,
        soft_wrap=True,
    )


@app.command("predict")
def predict_command(
    samples: Annotated[
        Path, typer.Argument(help="Samples: .json, .jsonl or .tsv; '-' reads stdin.")
    ],
    repository: Annotated[
        Path | None, typer.Option("--repository", "-r", help="Score here, without a server.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", "-a", help="Score on a server, HOST:PORT.")
    ] = None,
    model: ModelOption = None,
    version: VersionOption = None,
    tsv: Annotated[bool, typer.Option("--tsv", help="Stdin is TSV; default: JSON.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Score samples from a file, with a published version or on a running server.

    JSON is an array of objects, or one object a line: {"dense": [0.5, 1.0], "C1": 7, "C2": [3, 1]}.
    TSV has the inputs' names in its first line, and ids or numbers joined by commas in its cells.
    """
    text = _read_text(samples)
    rows = read_tsv(text) if tsv or samples.suffix == ".tsv" else read_json(text)
    if (repository is None) == (address is None):
        raise InputError("expected one of --repository and --address")
    if address is not None:
        if model is None:
            raise InputError("--address needs --model")
        prediction = predict_remote(address, model, version, rows)
    else:
        prediction = predict_local(_open(_artifact(repository or Path(), model, version)), rows)
    if as_json:
        print(json.dumps(prediction.fields()))  # noqa: T201 - output for scripts
        return
    for line in prediction.lines():
        print(line)  # noqa: T201 - output for pipes


@app.command("serve")
def serve_command(
    repository: RepositoryOption,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Model to serve; may be repeated; default: all."),
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="Published plan to use; default: each version's first.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="gRPC port; 0 picks a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(help="HTTP port of /metrics; 0: any.")] = 8002,
    threads: Annotated[int, typer.Option(help="Requests answered side by side.", min=1)] = 8,
    max_concurrent_requests: Annotated[
        int, typer.Option(help="Requests in progress or waiting; one more is refused.", min=1)
    ] = 1024,
    max_batch: Annotated[int, typer.Option(help="Samples of a request.", min=1)] = 65536,
    max_message_mib: Annotated[int, typer.Option(help="Size of a message, MiB.", min=1)] = 64,
    drain_seconds: Annotated[
        float, typer.Option(help="Time for requests in flight after SIGTERM.", min=0)
    ] = 30.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="When ready, print one line of JSON.")
    ] = False,
) -> None:
    """Serve published models over gRPC (Open Inference Protocol), with Prometheus metrics.

    Serves the latest version of each model. Answers health checks and reflection. SIGTERM stops
    accepting, finishes what is in flight, and exits with 0.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("sharded_infer").setLevel(logging.INFO)
    config = ServerConfig(
        repository=repository,
        models=tuple(model or ()),
        topology=topology,
        host=host,
        port=port,
        metrics_port=metrics_port,
        threads=threads,
        max_concurrent_requests=max_concurrent_requests,
        max_batch=max_batch,
        max_message_bytes=max_message_mib * MIB,
        drain_seconds=drain_seconds,
    )

    def on_ready(ready: Ready) -> None:
        if as_json:
            print(json.dumps(ready.fields()), flush=True)  # noqa: T201 - output for scripts
            return
        for served in ready.models:
            _out.print(
                f"serving {served.name} version {served.version} on {served.topology}: "
                f"{_size(served.table_bytes)} of tables, kernels {served.kernels}",
                highlight=False,
            )
        _out.print(f"grpc     {ready.grpc_url}\nmetrics  {ready.metrics_url}", highlight=False)

    with progress_bars() as progress:
        serve(config, on_ready=on_ready, progress=progress)


@app.command("doctor")
def doctor_command(
    port: Annotated[list[int] | None, typer.Option(help="Port to check; may be repeated.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check versions, CPU features, FBGEMM's pairing with torch, import names and ports."""
    findings = examine(port or (8001, 8002))
    problems = [finding for finding in findings if finding.verdict is Verdict.PROBLEM]
    if as_json:
        fields = [{"check": f.check, "verdict": f.verdict, "detail": f.detail} for f in findings]
        print(json.dumps(fields))  # noqa: T201 - output for scripts
    else:
        table = Table("check", "verdict", "detail", box=None)
        for finding in findings:
            table.add_row(finding.check, finding.verdict, finding.detail)
        _out.print(table)
    if problems:
        raise typer.Exit(1)


@app.command("demo")
def demo_command(
    data: Annotated[
        Path | None, typer.Option(help="Click log in Criteo's format; default: generate one.")
    ] = None,
    rows: Annotated[
        int, typer.Option(help="Rows to generate, or to read at most.", min=10)
    ] = 20000,
    repository: Annotated[
        Path | None,
        typer.Option("--repository", "-r", help="Where to publish; default: temporary."),
    ] = None,
    port: Annotated[int, typer.Option(help="The server's gRPC port; 0: any.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file as JSON.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running.")] = False,
) -> None:
    """Train a DLRM on click logs, quantize, plan, publish and serve it, and score it over gRPC.

    Exit code 0 only if every step held and the served scores rank as well as the fp32 model's.
    """
    with progress_bars() as progress:
        result = run_demo(
            data=data, rows=rows, repository=repository, port=port, keep=keep, progress=progress
        )
    if json_file is not None:
        json_file.write_text(json.dumps(result.fields(), indent=1) + "\n")
    _print_demo(result)


def _print_demo(result: DemoResult) -> None:
    latency = result.latency_ms
    table = Table(title="sharded-infer demo", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    ratio = result.artifact_table_bytes / result.fp32_bytes
    rows: list[tuple[str, str]] = [
        ("rows trained on / scored", f"{result.training_rows:,} / {result.scored_rows:,}"),
        ("AUC, fp32 model", f"{result.auc_fp32:.4f}"),
        ("AUC, served scores", f"{result.auc_served:.4f}"),
        ("largest score difference", f"{result.max_abs_score_diff:.2g}"),
        ("tables, fp32", _size(result.fp32_bytes)),
        ("tables, published", f"{_size(result.artifact_table_bytes)} ({ratio:.1%})"),
        ("requests", f"{result.requests:,}"),
        ("pairs a second, one client", f"{result.pairs_per_second:,.0f}"),
        (
            "latency p50 / p95 / p99",
            f"{latency.p50:.2f} / {latency.p95:.2f} / {latency.p99:.2f} ms",
        ),
        ("gRPC", result.grpc_url),
        ("metrics", result.metrics_url),
    ]
    for row in rows:
        table.add_row(*row)
    _out.print(table)
    if result.server_pid is None:
        _out.print("the server has been stopped; --keep leaves it running", highlight=False)
    else:
        _out.print(f"the server is running: kill {result.server_pid} stops it", highlight=False)


def _artifact(repository: Path, model: str | None, version: int | None) -> Artifact:
    published = Repository(repository)
    if model is None:
        models = published.models()
        if len(models) != 1:
            held = ", ".join(models) or "none"
            raise NotFoundError(f"{repository}: say which --model; it holds {held}")
        (model,) = models
    return open_artifact(published.version_path(model, version))


def _open(artifact: Artifact, topology: str | None = None) -> Model:
    # One intra-op thread, as in a server: scores are then equal to the bit.
    torch.set_num_threads(1)
    return Model(artifact, artifact.plan(topology))


def _read_text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _size(count: int) -> str:
    value: Any = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


if __name__ == "__main__":
    main()
