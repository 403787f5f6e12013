"""Scoring of samples by a running server, and the demo's figures."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from serving.demo.raw_ids import RawIdsResult
from serving.remote.triton_inputs import triton_inputs
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress
from sharded_infer.quality.auc import auc

MAX_AUC_DIFFERENCE = 0.001
REQUEST_SIZES = (1, 16, 64, 270)

RequestArrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class LatencyMs:
    """Percentiles of a request's latency."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores `[N]` and latencies `[requests]`; samples a second with one request at a time."""

    scores: NDArray[np.float32]
    latencies_ms: NDArray[np.float64]
    pairs_per_second: float

    @property
    def latency(self) -> LatencyMs:
        """Percentiles over the requests."""
        p50, p95, p99 = np.percentile(self.latencies_ms, (50, 95, 99))
        return LatencyMs(float(p50), float(p95), float(p99))


def score_in_passes(
    url: str,
    model: str,
    arrays: Callable[[int, int], RequestArrays],
    samples: int,
    *,
    passes: int,
    progress: Progress,
) -> Scoring:
    """Send all samples `passes` times, in requests `arrays(first, end)` of `REQUEST_SIZES`."""

    def requests() -> Iterator[RequestArrays]:
        sizes = itertools.cycle(REQUEST_SIZES)
        for _ in range(passes):
            start = 0
            while start < samples:
                end = min(start + next(sizes), samples)
                yield arrays(start, end)
                start = end

    total = passes * samples
    return score(url, model, requests(), lambda done: progress("scoring through gRPC", done, total))


def score(
    url: str, model: str, requests: Iterable[RequestArrays], on_scored: Callable[[int], None]
) -> Scoring:
    """Send requests in turn, reporting their samples; ShardedInferError if one is refused."""
    scores: list[NDArray[np.float32]] = []
    latencies: list[float] = []
    scored = 0
    with triton.InferenceServerClient(url) as client:
        for arrays in requests:
            inputs = triton_inputs(arrays)
            began = perf_counter()
            try:
                result = client.infer(model, inputs, client_timeout=60)
            except triton.InferenceServerException as error:
                raise ShardedInferError(f"the server refused a request: {error}") from error
            latencies.append(perf_counter() - began)
            scores.append(result.as_numpy("score"))
            scored += scores[-1].size
            on_scored(scored)
    return Scoring(np.concatenate(scores), np.array(latencies) * 1e3, scored / sum(latencies))


def compare_aucs(
    labels: NDArray[np.float32], trained: NDArray[np.float32], served: NDArray[np.float32]
) -> tuple[float, float]:
    """AUCs of fp32 and served scores; ShardedInferError beyond `MAX_AUC_DIFFERENCE`."""
    auc_fp32, auc_served = auc(labels, trained), auc(labels, served)
    if abs(auc_served - auc_fp32) > MAX_AUC_DIFFERENCE:
        raise ShardedInferError(
            f"the served scores' AUC is {auc_served:.5f}, the fp32 model's {auc_fp32:.5f}: "
            f"they may differ by {MAX_AUC_DIFFERENCE}"
        )
    return auc_fp32, auc_served


@dataclass(frozen=True, slots=True)
class HostsResult:
    """Measurements with shard hosts; `bits_equal` to the scores of the plan in one process."""

    table_bytes: tuple[int, ...]
    bits_equal: bool
    one_process_latency_ms: LatencyMs
    requests_after_loss: int
    latency_after_loss_ms: LatencyMs
    process_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankingResult:
    """Requests of a history and candidates, without the user cache, then twice: a miss, a hit."""

    requests: int
    candidates: int
    misses: int
    hits: int
    bits_equal: bool
    max_abs_score_diff: float
    latency_ms: LatencyMs
    hit_latency_ms: LatencyMs


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of every demo; `on_serving` gets `metrics_url` before the server gets requests."""

    rows: int
    repository: Path | None
    port: int
    keep: bool
    on_serving: Callable[[str], None]
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The demo's figures, the keys of `--json`; None: of another kind of model or of requests."""

    model: str
    auc_fp32: float
    auc_popularity: float | None = None
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
    hosts: HostsResult | None = None
    raw_ids: RawIdsResult | None = None
    ranking: RankingResult | None = None
