"""Runs the demo of a model with a history, and returns figures."""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from kernels.sequences.user_states import BLOCK_POSITIONS
from serving.demo.scoring import (
    DemoOptions,
    DemoResult,
    RankingResult,
    Scoring,
    compare_aucs,
    score,
    score_in_passes,
)
from serving.demo.sequences.model import SequenceDemo, train_sequence_demo
from serving.demo.sequences.samples import popularity
from serving.demo.server_process import ServerProcess, server_process
from serving.remote.scraped_metrics import user_states
from sharded_infer.errors import InputError, ShardedInferError
from sharded_infer.publishing.publication import publish
from sharded_infer.quality.auc import auc

_USER_CACHE = ("--user-cache-mib", "64")
_CALIBRATION_SAMPLES = 1024
_PASSES = 3  # over the held-out samples, so that a p99 is of many requests
# Of ranking requests: a history once, and many candidates.
_USERS = 100
_CANDIDATES = 200
_SEED = 0


def run_sequence_demo(
    options: DemoOptions, architecture: str, *, ratings: Path | None
) -> DemoResult:
    """Train, publish and serve a model; score held-out samples, and rank candidates.

    A first server, without the user cache, scores the held-out samples. The second has the cache.
    Raises ShardedInferError for a bad log, a refused version or request, scores that the gate does
    not allow, and a user cache that misses or changes a bit.
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
        newest = demo.split.training.select(slice(-_CALIBRATION_SAMPLES, None))
        published = publish(
            demo.spec,
            demo.trained.tables,
            demo.trained.tower,
            repository,
            calibration={**demo.arrays(newest), "label": newest.labels},
            progress=progress,
        )
        trained = demo.trained.scores(held_out)

        def on_ranked(candidates: int) -> None:
            progress("ranking through gRPC", candidates, ranking.candidates.size)

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


class Ranking:
    """Held-out histories, no two alike, with candidates drawn from all items."""

    def __init__(self, demo: SequenceDemo) -> None:
        """Choose histories of which a user cache keeps a beginning; InputError if there is none."""
        held_out = demo.split.held_out
        seen = np.flatnonzero(held_out.lengths > BLOCK_POSITIONS)[-20 * _USERS :]
        if not seen.size:
            raise InputError(
                f"the held-out part has no history of more than {BLOCK_POSITIONS} items, expected "
                "at least one"
            )
        items = held_out.select(seen).padded().items
        _, firsts = np.unique(items, axis=0, return_index=True)
        self._users = held_out.select(seen[np.sort(firsts)[-_USERS:]])
        self.candidates = np.random.default_rng(_SEED).integers(
            1, held_out.item_rows, (len(self._users), _CANDIDATES)
        )
        self._demo = demo

    def scores(self, server: ServerProcess, on_scored: Callable[[int], None]) -> Scoring:
        """Send a request a history, reporting candidates; ShardedInferError if one is refused."""
        requests = (
            self._demo.arrays(self._users.select(slice(number, number + 1)), candidates)
            for number, candidates in enumerate(self.candidates)
        )
        return score(server.grpc_url, self._demo.spec.name, requests, on_scored)

    def with_cache(
        self, alone: Scoring, server: ServerProcess, on_scored: Callable[[int], None]
    ) -> RankingResult:
        """Send all requests twice to a server with an empty user cache; `alone` has none.

        Raises ShardedInferError unless all first ones miss and all second ones hit, scores equal
        those without the cache to the bit, and they are within the gate.
        """
        page, model = server.metrics_url, self._demo.spec.name
        counts = [user_states(page, model)]
        scorings = []
        for _ in range(2):
            scorings.append(self.scores(server, on_scored))
            counts.append(user_states(page, model))
        requests = len(self._users)
        (first_hits, misses), (hits, last_misses) = np.diff(counts, axis=0).tolist()
        if (first_hits, misses, hits, last_misses) != (0, requests, requests, 0):
            raise ShardedInferError(
                f"{requests} histories were sent twice: expected as many misses, then hits, of the "
                f"user cache; the server counted {misses} misses and {first_hits} hits, then "
                f"{last_misses} misses and {hits} hits"
            )
        for scoring in scorings:
            if not np.array_equal(scoring.scores, alone.scores):
                most = np.abs(scoring.scores - alone.scores).max()
                raise ShardedInferError(
                    f"scores with the user cache differ from those without by up to {most:.2g}"
                )
        each = np.repeat(np.arange(requests), _CANDIDATES)
        pairs = replace(self._users.select(each), candidates=self.candidates.ravel())
        trained = self._demo.trained.scores(pairs)
        return RankingResult(
            requests=requests,
            candidates=_CANDIDATES,
            misses=misses,
            hits=hits,
            bits_equal=True,
            max_abs_score_diff=self._demo.difference(trained, alone.scores),
            latency_ms=alone.latency,
            hit_latency_ms=scorings[1].latency,
        )
