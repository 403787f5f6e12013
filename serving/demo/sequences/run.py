"""Runs the demo of a model with a history, and returns figures."""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch

from serving.demo.result import DemoOptions, DemoResult
from serving.demo.scoring import compare_aucs, score_in_passes
from serving.demo.sequences.model import SequenceDemo, train_sequence_demo
from serving.demo.sequences.ranking import Ranking
from serving.demo.sequences.samples import popularity
from serving.demo.server_process import server_process
from sharded_infer.progress import Progress
from sharded_infer.publishing.publication import PublishedVersion, publish
from sharded_infer.quality.auc import auc

_USER_CACHE = ("--user-cache-mib", "64")
_CALIBRATION_SAMPLES = 1024
_PASSES = 3  # over the held-out samples, so that a p99 is of many requests


def run_sequence_demo(
    options: DemoOptions, architecture: str, *, ratings: Path | None
) -> DemoResult:
    """Train, publish and serve a model; score held-out samples, and rank candidates.

    A first server, without the user cache, scores the held-out samples. The second has the cache.
    Without `ratings`, in MovieLens's format, a log is generated. Raises ShardedInferError for a bad
    log, a refused version or request, scores that the gate does not allow, and a user cache that
    misses or changes a bit.
    """
    repository, keep, progress = options.repository, options.keep, options.progress
    # On a busy machine two intra-op threads are far slower than one.
    torch.set_num_threads(1)
    with ExitStack() as stack:
        if repository is None:
            repository = Path(tempfile.mkdtemp(prefix="sharded-infer-demo-"))
            if not keep:
                stack.callback(shutil.rmtree, repository, ignore_errors=True)
        demo = train_sequence_demo(architecture, ratings, options.rows, progress)
        held_out = demo.split.held_out
        ranking = Ranking(demo)
        published = _publish(demo, repository, progress)
        trained = demo.trained_scores(held_out)

        def on_ranked(candidates: int) -> None:
            progress("ranking through gRPC", candidates, ranking.pairs)

        with server_process(repository) as server:
            scoring = score_in_passes(
                server.grpc_url,
                demo.spec.name,
                lambda start, end: demo.arrays(held_out.select(slice(start, end))),
                len(held_out),
                passes=_PASSES,
                progress=progress,
            )
            alone = ranking.scores(server, on_ranked)
        served = scoring.scores[: len(held_out)]
        aucs = compare_aucs(held_out.labels, trained, served)
        difference = demo.difference(trained, served)
        server = stack.enter_context(
            server_process(repository, port=options.port, keep=keep, options=_USER_CACHE)
        )
        options.on_serving(server.metrics_url)
        ranked = ranking.with_cache(alone, server, on_ranked)
        return DemoResult(
            model=architecture,
            auc_fp32=aucs[0],
            auc_popularity=auc(held_out.labels, popularity(held_out, demo.split.training)),
            auc_served=aucs[1],
            max_abs_score_diff=difference,
            fp32_bytes=published.fp32_bytes,
            artifact_table_bytes=published.table_bytes,
            requests=len(scoring.latencies_ms),
            pairs_per_second=scoring.pairs_per_second,
            latency_ms=scoring.latency,
            metrics_url=server.metrics_url,
            grpc_url=server.grpc_url,
            repository=str(repository),
            version=published.version,
            training_rows=len(demo.split.training),
            scored_rows=len(held_out),
            server_pid=server.process.pid if keep else None,
            ranking=ranked,
        )


def _publish(demo: SequenceDemo, repository: Path, progress: Progress) -> PublishedVersion:
    newest = demo.split.training.select(slice(-_CALIBRATION_SAMPLES, None))
    return publish(
        demo.spec,
        demo.trained.tables,
        demo.trained.tower,
        repository,
        calibration={**demo.arrays(newest), "label": newest.labels},
        progress=progress,
    )
