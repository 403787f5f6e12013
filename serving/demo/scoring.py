"""Scores samples through a running server."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from serving.demo.criteo import FEATURES, Examples
from serving.remote.triton_inputs import triton_inputs
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress


@dataclass(frozen=True, slots=True)
class Scoring:
    """The server's scores and latencies.

    Attributes:
        scores: fp32 `[N]`.
        latencies_ms: of each request, fp64 `[requests]`.
        pairs_per_second: samples scored by wall-clock second, one request at a time.
    """

    scores: NDArray[np.float32]
    latencies_ms: NDArray[np.float64]
    pairs_per_second: float


def score(
    url: str,
    model: str,
    examples: Examples,
    *,
    sizes: Sequence[int],
    passes: int,
    progress: Progress,
) -> Scoring:
    """Sends samples in requests of several sizes, one after another.

    Args:
        sizes: samples of a request, in turn until all are scored.
        passes: number of times to score all; the scores are those of the first pass.

    Raises:
        ShardedInferError: the server refused a request.
    """
    scores: list[NDArray[np.float32]] = []
    latencies: list[float] = []
    turn = itertools.cycle(sizes)
    with triton.InferenceServerClient(url) as client:
        for number in range(passes):
            start = 0
            while start < len(examples):
                batch = examples.slice(start, start + next(turn))
                inputs = _inputs(batch)
                began = perf_counter()
                try:
                    result = client.infer(model, inputs, client_timeout=60)
                except triton.InferenceServerException as error:
                    raise ShardedInferError(f"the server refused a request: {error}") from error
                latencies.append(perf_counter() - began)
                answer = result.as_numpy("score")
                if number == 0:
                    scores.append(answer)
                start += len(batch)
                done = number * len(examples) + start
                progress("scoring through gRPC", done, passes * len(examples))
    return Scoring(
        np.concatenate(scores), np.array(latencies) * 1e3, passes * len(examples) / sum(latencies)
    )


def _inputs(batch: Examples) -> list[triton.InferInput]:
    # A bag may be empty, so every feature comes with its lengths.
    arrays: dict[str, NDArray[np.generic]] = {"dense": batch.dense}
    ends = np.cumsum(batch.lengths.sum(axis=1))
    ids = batch.values if batch.texts is None else batch.texts
    for index, name in enumerate(FEATURES):
        lengths = batch.lengths[index]
        arrays[name] = ids[ends[index] - lengths.sum() : ends[index]]
        arrays[f"{name}.lengths"] = lengths
    return triton_inputs(arrays)
