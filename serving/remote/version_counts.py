"""Counts of a model's versions in a running server, from its metrics page."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from serving.remote.caller import ANONYMOUS, Caller
from serving.remote.scraped_metrics import scraped_samples

# By the sample's name and the values of its labels other than model and version.
Counts = Mapping[tuple[str, ...], float]

REQUESTS = "sharded_infer_requests_total"
REQUEST_SECONDS = "sharded_infer_request_seconds_bucket"
SCORES = "sharded_infer_scores_bucket"
BATCHES = "sharded_infer_batch_requests_count"
ROWS = "sharded_infer_rank_rows_total"
IDS_OUT_OF_RANGE = "sharded_infer_ids_out_of_range_total"
_COUNTED = {
    REQUESTS: "code",
    REQUEST_SECONDS: "le",
    SCORES: "output, le",
    BATCHES: "",
    ROWS: "",
    IDS_OUT_OF_RANGE: "",
}


def read_counts(url: str, model: str, caller: Caller = ANONYMOUS) -> dict[int, Counts]:
    """Counts of each version since the server's start; InputError if the page cannot be read."""
    versions: dict[int, defaultdict[tuple[str, ...], float]] = {}
    for sample in scraped_samples(url, caller):
        own = _COUNTED.get(sample.name)
        if own is None or sample.labels.get("model") != model:
            continue
        if (version := sample.labels.get("version", "")).isdigit():
            labels = (sample.labels.get(label, "") for label in own.split(", ") if label)
            counts = versions.setdefault(int(version), defaultdict(float))
            counts[sample.name, *labels] += sample.value
    return {version: dict(counts) for version, counts in versions.items()}


def counts_since(before: Counts, now: Counts) -> Counts:
    """Counts between two moments; all of `now` if the server started between them."""
    if any(now.get(key, 0.0) < value for key, value in before.items()):
        return now
    return {key: value - before.get(key, 0.0) for key, value in now.items()}


def added_counts(several: Iterable[Counts]) -> Counts:
    """Sum over servers."""
    total: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for counts in several:
        for key, value in counts.items():
            total[key] += value
    return dict(total)
