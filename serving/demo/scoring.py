"""Scores samples through a running server, as any client would."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from serving.demo.criteo import FEATURES, Examples
from sharded_infer.artifact import Progress
from sharded_infer.errors import ShardedInferError


@dataclass(frozen=True, slots=True)
class Scoring:
    """What the server answered, and how fast.

    Attributes:
        scores: fp32 `[N]`.
        latencies_ms: of each request, fp64 `[requests]`.
        pairs_per_second: samples scored by wall-clock second, one request at a time.
    """

    scores: NDArray[np.float32]
    latencies_ms: NDArray[np.float64]
    pairs_per_second: float


def score(
    url: str, model: str, examples: Examples, sizes: Sequence[int], progress: Progress
) -> Scoring:
    """Sends samples in requests of several sizes, one after another.

    Args:
        url: the server's gRPC address.
        model: the model's name.
        examples: what to score.
        sizes: samples of the requests, used in turn until all are scored.
        progress: told the samples scored so far.

    Raises:
        ShardedInferError: the server refused a request.
    """
    scores, latencies = [], []
    with triton.InferenceServerClient(url) as client:
        start, turn, seconds = 0, 0, 0.0
        while start < len(examples):
            batch = examples.slice(start, start + sizes[turn % len(sizes)])
            inputs = _inputs(batch)
            began = perf_counter()
            try:
                result = client.infer(model, inputs, client_timeout=60)
            except triton.InferenceServerException as error:
                raise ShardedInferError(f"the server refused a request: {error}") from error
            elapsed = perf_counter() - began
            scores.append(result.as_numpy("score"))
            latencies.append(elapsed * 1e3)
            seconds += elapsed
            start, turn = start + len(batch), turn + 1
            progress("scoring through gRPC", start, len(examples))
    return Scoring(np.concatenate(scores), np.array(latencies), len(examples) / seconds)


def _inputs(batch: Examples) -> list[triton.InferInput]:
    # A bag may be empty, so every feature comes with its lengths.
    arrays: dict[str, NDArray[np.generic]] = {"dense": batch.dense}
    ends = np.cumsum(batch.lengths.sum(axis=1))
    for index, name in enumerate(FEATURES):
        lengths = batch.lengths[index]
        arrays[name] = batch.values[ends[index] - lengths.sum() : ends[index]]
        arrays[f"{name}.lengths"] = lengths
    inputs = []
    for name, array in arrays.items():
        datatype = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}[array.dtype.name]
        tensor = triton.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(np.ascontiguousarray(array))
        inputs.append(tensor)
    return inputs
