"""Runs the demo: trains, quantizes, publishes and serves a model of clicks, and returns figures."""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from serving.demo.model import MODEL, DemoModel, model_input, train_demo
from serving.demo.raw_ids import RawIdsResult, check_unknown, unknown_ids
from serving.demo.scoring import Scoring, score
from serving.demo.server_process import ServerProcess, server_process
from serving.demo.shard_hosts import DemoHosts, shard_host_processes, write_topology
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
class HostsResult:
    """What was measured with shard hosts.

    Attributes:
        table_bytes: of each host's rows, by its number in the plan.
        bits_equal: whether every score is that of the same plan in one process.
        one_process_latency_ms: of the same requests, in one process.
        requests_after_loss: answered after a replica was killed; every score as before.
        process_ids: of shard hosts that are left running.
    """

    table_bytes: tuple[int, ...]
    bits_equal: bool
    one_process_latency_ms: LatencyMs
    requests_after_loss: int
    latency_after_loss_ms: LatencyMs
    process_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The demo's figures; the fields are the keys of `--json`.

    Attributes:
        hosts: None without shard hosts.
        raw_ids: None where clients sent rows.
    """

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
    hosts: HostsResult | None
    raw_ids: RawIdsResult | None

    def fields(self) -> dict[str, object]:
        """The figures for JSON."""
        return asdict(self)


def run_demo(
    *,
    data: Path | None,
    rows: int,
    repository: Path | None,
    port: int,
    hosts: int | None,
    raw_ids: bool,
    keep: bool,
    on_serving: Callable[[str], None],
    progress: Progress,
) -> DemoResult:
    """Runs the whole demo.

    Args:
        data: a click log; None generates one.
        rows: lines to generate, or the most lines to read.
        repository: where to publish; None takes a temporary folder (kept with `keep`).
        port: the server's gRPC port; 0 picks a free one.
        hosts: shard hosts that have the tables, 2 to 5; None: the server has them.
        raw_ids: send the log's own strings, which the server maps to rows.
        keep: leave the processes running.
        on_serving: called with `metrics_url` when the server answers, before requests are sent.

    Raises:
        ShardedInferError: a bad log, a refused version, a refused request, served scores that
            rank worse than the fp32 model's or differ from one process's, or a server that counts
            other unknown ids than there are.
    """
    # A busy machine makes two intra-op threads slower than one, by far.
    torch.set_num_threads(1)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="sharded-infer-demo-"))
        if not keep or (repository is not None and hosts is None):
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        repository = folder / "repository" if repository is None else repository
        demo = train_demo(data, rows, progress, raw_ids=raw_ids)
        held_out = demo.held_out
        topology = TOPOLOGY if hosts is None else write_topology(folder, demo.spec, hosts)
        published = _publish(demo, repository, topology, progress)
        expected = demo.trained.scores(held_out, _REFERENCE_BATCH)

        def scored(server: ServerProcess) -> Scoring:
            url, sizes = server.grpc_url, REQUEST_SIZES
            return score(url, MODEL, held_out, sizes=sizes, passes=_PASSES, progress=progress)

        def counted(server: ServerProcess) -> tuple[Scoring, RawIdsResult | None]:
            if not raw_ids:
                return scored(server), None
            before = unknown_ids(server.metrics_url, MODEL)
            scoring = scored(server)
            found = unknown_ids(server.metrics_url, MODEL) - before
            return scoring, check_unknown(found, held_out, _PASSES)

        measured = None
        if hosts is None:
            server = stack.enter_context(server_process(repository, port=port, keep=keep))
            on_serving(server.metrics_url)
            scoring, unknown = counted(server)
        else:
            with server_process(repository) as alone:
                reference, unknown = counted(alone)
            running = stack.enter_context(
                shard_host_processes(repository, folder, hosts, keep=keep)
            )
            options = ("--shard-hosts", str(running.hosts_file))
            server = stack.enter_context(
                server_process(repository, port=port, keep=keep, options=options)
            )
            on_serving(server.metrics_url)
            scoring = scored(server)
            running.extra_replica.kill()
            measured = _hosts_result(running, reference, scoring, scored(server), keep=keep)
        auc_fp32, auc_served = auc(held_out.labels, expected), auc(held_out.labels, scoring.scores)
        if abs(auc_served - auc_fp32) > MAX_AUC_DIFFERENCE:
            raise ShardedInferError(
                f"the served scores' AUC is {auc_served:.5f}, the fp32 model's {auc_fp32:.5f}: "
                f"they may differ by {MAX_AUC_DIFFERENCE}"
            )
        return DemoResult(
            auc_fp32=auc_fp32,
            auc_served=auc_served,
            max_abs_score_diff=float(np.abs(scoring.scores - expected).max()),
            fp32_bytes=published.fp32_bytes,
            artifact_table_bytes=published.table_bytes,
            requests=len(scoring.latencies_ms),
            pairs_per_second=scoring.pairs_per_second,
            latency_ms=_latency(scoring),
            metrics_url=server.metrics_url,
            grpc_url=server.grpc_url,
            repository=str(repository),
            version=published.version,
            training_rows=len(demo.training),
            scored_rows=len(held_out),
            server_pid=server.process.pid if keep else None,
            hosts=measured,
            raw_ids=unknown,
        )


def _hosts_result(
    running: DemoHosts, alone: Scoring, before: Scoring, after: Scoring, *, keep: bool
) -> HostsResult:
    """Compares one process with shard hosts, before and after a replica was killed.

    Raises:
        ShardedInferError: a score differs.
    """
    for words, scoring in (("", before), (" after a replica was killed", after)):
        if not np.array_equal(scoring.scores, alone.scores):
            most = np.abs(scoring.scores - alone.scores).max()
            raise ShardedInferError(
                f"scores through shard hosts{words} differ from one process's by up to {most:.2g}"
            )
    kept = running.processes[:-1] if keep else ()
    return HostsResult(
        table_bytes=running.table_bytes,
        bits_equal=True,
        one_process_latency_ms=_latency(alone),
        requests_after_loss=len(after.latencies_ms),
        latency_after_loss_ms=_latency(after),
        process_ids=tuple(one.process.pid for one in kept),
    )


def _latency(scoring: Scoring) -> LatencyMs:
    p50, p95, p99 = np.percentile(scoring.latencies_ms, (50, 95, 99))
    return LatencyMs(float(p50), float(p95), float(p99))


def _publish(
    demo: DemoModel, repository: Path, topology: str, progress: Progress
) -> PublishedVersion:
    return publish(
        demo.spec,
        demo.trained.embeddings,
        demo.trained.tower,
        repository,
        topologies=(topology,),
        id_maps=demo.id_maps,
        samples=model_input(demo.training.slice(0, _GOLDEN_SAMPLES)),
        progress=progress,
    )
