"""Runs the demo: trains, quantizes, publishes and serves a model of clicks, and returns figures."""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from serving.demo.model import MODEL, model_input, request_arrays, train_demo
from serving.demo.raw_ids import RawIdsResult, check_unknown, unknown_ids
from serving.demo.scoring import (
    DemoOptions,
    DemoResult,
    HostsResult,
    Scoring,
    compare_aucs,
    score_in_passes,
)
from serving.demo.server_process import (
    DemoHosts,
    ServerProcess,
    server_process,
    shard_host_processes,
    write_topology,
)
from sharded_infer.errors import ShardedInferError
from sharded_infer.publishing.publication import publish

_TOPOLOGY = "cpu:2"
_REFERENCE_BATCH = 1024
_PASSES = 8  # over the held-out rows, so that a p99 is of many requests
_GOLDEN_SAMPLES = 64


def run_demo(
    options: DemoOptions, *, data: Path | None, hosts: int | None, raw_ids: bool
) -> DemoResult:
    """Run the whole demo.

    Raises ShardedInferError for a bad log, a refused version or request, served scores that rank
    worse than the fp32 model's or differ from one process's, and a wrong count of unknown ids.
    """
    keep, progress = options.keep, options.progress
    # On a busy machine two intra-op threads are far slower than one.
    torch.set_num_threads(1)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="sharded-infer-demo-"))
        if not keep or (options.repository is not None and hosts is None):
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        repository = options.repository or folder / "repository"
        demo = train_demo(data, options.rows, progress, raw_ids=raw_ids)
        held_out = demo.held_out
        topology = _TOPOLOGY if hosts is None else write_topology(folder, demo.spec, hosts)
        published = publish(
            demo.spec,
            demo.trained.embeddings,
            demo.trained.tower,
            repository,
            topologies=(topology,),
            id_maps=demo.id_maps,
            samples=model_input(demo.training.select(slice(_GOLDEN_SAMPLES))),
            progress=progress,
        )
        expected = demo.trained.scores(held_out, _REFERENCE_BATCH)

        def scored(server: ServerProcess) -> Scoring:
            return score_in_passes(
                server.grpc_url,
                MODEL,
                lambda start, end: request_arrays(held_out.select(slice(start, end))),
                len(held_out),
                passes=_PASSES,
                progress=progress,
            )

        def counted(server: ServerProcess) -> tuple[Scoring, RawIdsResult | None]:
            if not raw_ids:
                return scored(server), None
            before = unknown_ids(server.metrics_url, MODEL)
            scoring = scored(server)
            unknown_counts = unknown_ids(server.metrics_url, MODEL) - before
            return scoring, check_unknown(unknown_counts, held_out, _PASSES)

        def started(*words: str) -> ServerProcess:
            server = stack.enter_context(
                server_process(repository, port=options.port, keep=keep, options=words)
            )
            options.on_serving(server.metrics_url)
            return server

        measured = None
        if hosts is None:
            server = started()
            scoring, unknown = counted(server)
        else:
            with server_process(repository) as alone:
                reference, unknown = counted(alone)
            running = stack.enter_context(
                shard_host_processes(repository, folder, hosts, keep=keep)
            )
            server = started("--shard-hosts", str(running.hosts_file))
            scoring = scored(server)
            running.processes[-1].kill()
            measured = _hosts_result(running, reference, scoring, scored(server), keep=keep)
        served = scoring.scores[: len(held_out)]
        auc_fp32, auc_served = compare_aucs(held_out.labels, expected, served)
        return DemoResult(
            model="dlrm",
            auc_fp32=auc_fp32,
            auc_served=auc_served,
            max_abs_score_diff=float(np.abs(served - expected).max()),
            fp32_bytes=published.fp32_bytes,
            artifact_table_bytes=published.table_bytes,
            requests=len(scoring.latencies_ms),
            pairs_per_second=scoring.pairs_per_second,
            latency_ms=scoring.latency,
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
    """Raise ShardedInferError if scores differ between one process and shard hosts."""
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
        one_process_latency_ms=alone.latency,
        requests_after_loss=len(after.latencies_ms),
        latency_after_loss_ms=after.latency,
        process_ids=tuple(one.process.pid for one in kept),
    )
