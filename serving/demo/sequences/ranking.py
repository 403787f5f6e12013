"""Ranking requests of the demo: a history once, and many candidates."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from serving.demo.result import RankingResult
from serving.demo.scoring import Scoring, score
from serving.demo.sequences.model import SequenceDemo
from serving.demo.server_process import ServerProcess
from serving.remote.scraped_metrics import user_states
from sharded_infer.errors import InputError, ShardedInferError

_USERS = 100
_CANDIDATES = 200
_SEED = 0


class Ranking:
    """Held-out histories, no two alike, with candidates drawn from all items."""

    def __init__(self, demo: SequenceDemo) -> None:
        """Choose the histories; raise InputError if all are empty."""
        held_out = demo.split.held_out
        seen = np.flatnonzero(held_out.lengths)[-20 * _USERS :]
        if not seen.size:
            raise InputError("the held-out part has no history, expected at least one")
        items = held_out.select(seen).padded().items
        _, firsts = np.unique(items, axis=0, return_index=True)
        self._users = held_out.select(seen[np.sort(firsts)[-_USERS:]])
        self._candidates = np.random.default_rng(_SEED).integers(
            1, held_out.item_rows, (len(self._users), _CANDIDATES)
        )
        self._demo = demo

    @property
    def pairs(self) -> int:
        """Number of candidates of all requests."""
        return self._candidates.size

    def scores(self, server: ServerProcess, on_scored: Callable[[int], None]) -> Scoring:
        """Send a request a history, reporting candidates; ShardedInferError if one is refused."""
        requests = (
            self._demo.arrays(self._users.select(slice(number, number + 1)), candidates)
            for number, candidates in enumerate(self._candidates)
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
        return RankingResult(
            requests=requests,
            candidates=_CANDIDATES,
            misses=misses,
            hits=hits,
            bits_equal=True,
            max_abs_score_diff=self._demo.difference(self._trained_scores(), alone.scores),
            latency_ms=alone.latency,
            hit_latency_ms=scorings[1].latency,
        )

    def _trained_scores(self) -> NDArray[np.float32]:
        each = np.repeat(np.arange(len(self._users)), _CANDIDATES)
        pairs = replace(self._users.select(each), candidates=self._candidates.ravel())
        return self._demo.trained_scores(pairs)
