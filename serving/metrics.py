"""The server's Prometheus metrics."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# 100 µs to 1 s, each boundary about 1.5 times the one before, so that a quantile read off a
# dashboard is within 25% of the truth anywhere in the range.
LATENCY_BOUNDARIES = (
    0.0001, 0.00015, 0.00025, 0.0004, 0.0006, 0.001, 0.0015, 0.0025, 0.004, 0.006,
    0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0,
)  # fmt: skip
PHASES = ("decode", "lookup", "tower", "encode")


class Metrics:
    """All metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        """Registers the metrics."""
        self.registry = CollectorRegistry()
        labels = ("model", "version")
        self.requests = Counter(
            "sharded_infer_requests",
            "Predict requests answered, by gRPC status code.",
            (*labels, "code"),
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "sharded_infer_request_seconds",
            "Time from a decoded RPC message to its encoded response, of successful requests.",
            labels,
            buckets=LATENCY_BOUNDARIES,
            registry=self.registry,
        )
        self.phase_seconds = Histogram(
            "sharded_infer_phase_seconds",
            "Time of one phase of a successful request: decode, lookup, tower or encode.",
            (*labels, "phase"),
            buckets=LATENCY_BOUNDARIES,
            registry=self.registry,
        )
        self.samples = Counter(
            "sharded_infer_samples",
            "Samples (user-item pairs) scored.",
            labels,
            registry=self.registry,
        )
        self.ids_out_of_range = Counter(
            "sharded_infer_ids_out_of_range",
            "Ids outside their tables that were ignored or wrapped, as the model's spec says.",
            labels,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "sharded_infer_requests_in_flight",
            "Predict requests being answered now.",
            registry=self.registry,
        )
        self.loaded = Gauge(
            "sharded_infer_model_loaded",
            "1 for each version that is loaded and ready.",
            labels,
            registry=self.registry,
        )


@dataclass(frozen=True, slots=True)
class VersionMetrics:
    """One version's metrics, their labels resolved once."""

    ok: Counter
    request_seconds: Histogram
    phase_seconds: dict[str, Histogram]
    samples: Counter
    ids_out_of_range: Counter


def version_metrics(metrics: Metrics, model: str, version: int) -> VersionMetrics:
    """Resolves the labels of a version's metrics.

    Args:
        metrics: the server's.
        model: the model's name.
        version: the version's number.
    """
    labels = (model, str(version))
    return VersionMetrics(
        ok=metrics.requests.labels(*labels, "OK"),
        request_seconds=metrics.request_seconds.labels(*labels),
        phase_seconds={phase: metrics.phase_seconds.labels(*labels, phase) for phase in PHASES},
        samples=metrics.samples.labels(*labels),
        ids_out_of_range=metrics.ids_out_of_range.labels(*labels),
    )
