"""The demo's options and figures."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serving.demo.raw_ids import RawIdsResult
from serving.demo.scoring import LatencyMs
from sharded_infer.progress import Progress


@dataclass(frozen=True, slots=True)
class HostsResult:
    """Measurements with shard hosts.

    Attributes:
        table_bytes: of each host's rows, by its number in the plan.
        bits_equal: every score equals that of the same plan in one process.
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
class RankingResult:
    """Requests that send a history once, with candidates, without and with the user cache.

    Each has another user, is sent once without the cache, then twice with it: a miss, then a hit.
    `bits_equal` if all three scores of each candidate are.
    """

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
    """Options of every demo.

    Attributes:
        rows: lines to generate, or the most lines to read.
        repository: None takes a temporary folder (kept with `keep`).
        port: the gRPC port of the server that stays; 0 picks a free one.
        keep: leave the processes running.
        on_serving: called with `metrics_url` when that server answers, before it gets requests.
    """

    rows: int
    repository: Path | None
    port: int
    keep: bool
    on_serving: Callable[[str], None]
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The demo's figures; the fields are the keys of `--json`.

    `auc_popularity` is of the candidates' ratings in the training part, None for clicks. `raw_ids`
    are None if clients sent rows, `ranking` for models without a history.
    """

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
