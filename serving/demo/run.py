"""Runs the demo: trains, quantizes, publishes and serves a model of clicks, and returns figures."""

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from serving.demo.model import MODEL, DemoModel, model_input, train_demo
from serving.demo.scoring import score
from serving.demo.server_process import server_process
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress
from sharded_infer.publishing.publication import PublishedVersion, publish
from sharded_infer.quality.auc import auc

TOPOLOGY = "cpu:2"
REQUEST_SIZES = (1, 16, 64, 270)
MAX_AUC_DIFFERENCE = 0.001
_REFERENCE_BATCH = 1024
_PASSES = 8  # over the held-out rows, so that a p99 is of many requests
_GOLDEN_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class LatencyMs:
    """Percentiles of a request's latency, milliseconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The demo's figures; the fields are the keys of `--json`."""

    auc_fp32: float
    auc_served: float
    max_abs_score_diff: float
    fp32_bytes: int
    artifact_table_bytes: int
    requests: int
    pairs_per_second: float
    latency_ms: LatencyMs
    metrics_url: str
    grpc_url: str
    repository: str
    version: int
    training_rows: int
    scored_rows: int
    server_pid: int | None

    def fields(self) -> dict[str, object]:
        """The figures for JSON."""
        return asdict(self)


def run_demo(
    *,
    data: Path | None,
    rows: int,
    repository: Path | None,
    port: int,
    keep: bool,
    progress: Progress,
) -> DemoResult:
    """Runs the whole demo.

    Args:
        data: a click log; None generates one.
        rows: lines to generate, or the most lines to read.
        repository: where to publish; None takes a temporary folder (kept with `keep`).
        port: the server's gRPC port; 0 picks a free one.
        keep: leave the server running.

    Raises:
        ShardedInferError: a bad log, a refused version, a refused request, or served scores that
            rank worse than the fp32 model's.
    """
    # A busy machine makes two intra-op threads slower than one, by far.
    torch.set_num_threads(1)
    with ExitStack() as stack:
        if repository is None:
            folder = Path(tempfile.mkdtemp(prefix="sharded-infer-demo-"))
            if not keep:
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            repository = folder / "repository"
        demo = train_demo(data, rows, progress)
        held_out = demo.held_out
        published = _publish(demo, repository, progress)
        expected = demo.trained.scores(held_out, _REFERENCE_BATCH)
        server = stack.enter_context(server_process(repository, port=port, keep=keep))
        scoring = score(
            server.grpc_url, MODEL, held_out, sizes=REQUEST_SIZES, passes=_PASSES, progress=progress
        )
        auc_fp32, auc_served = auc(held_out.labels, expected), auc(held_out.labels, scoring.scores)
        if abs(auc_served - auc_fp32) > MAX_AUC_DIFFERENCE:
            raise ShardedInferError(
                f"the served scores' AUC is {auc_served:.5f}, the fp32 model's {auc_fp32:.5f}: "
                f"they may differ by {MAX_AUC_DIFFERENCE}"
            )
        p50, p95, p99 = np.percentile(scoring.latencies_ms, (50, 95, 99))
        return DemoResult(
            auc_fp32=auc_fp32,
            auc_served=auc_served,
            max_abs_score_diff=float(np.abs(scoring.scores - expected).max()),
            fp32_bytes=published.fp32_bytes,
            artifact_table_bytes=published.table_bytes,
            requests=len(scoring.latencies_ms),
            pairs_per_second=scoring.pairs_per_second,
            latency_ms=LatencyMs(float(p50), float(p95), float(p99)),
            metrics_url=server.metrics_url,
            grpc_url=server.grpc_url,
            repository=str(repository),
            version=published.version,
            training_rows=len(demo.training),
            scored_rows=len(held_out),
            server_pid=server.process.pid if keep else None,
        )


def _publish(demo: DemoModel, repository: Path, progress: Progress) -> PublishedVersion:
    return publish(
        demo.spec,
        demo.trained.embeddings,
        demo.trained.tower,
        repository,
        topologies=(TOPOLOGY,),
        samples=model_input(demo.training.slice(0, _GOLDEN_SAMPLES)),
        progress=progress,
    )
