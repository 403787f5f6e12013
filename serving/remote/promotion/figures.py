"""Counts of one version during a step of a promotion."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.metrics.lookups.lookup_metrics import SCORES_EVERY
from serving.remote import version_counts
from serving.remote.promotion.histogram import Histogram, histogram_of
from serving.remote.version_counts import Counts

# The client has left, which is not the version's fault.
_NO_ERROR = ("OK", "CANCELLED")


@dataclass(frozen=True, slots=True)
class VersionFigures:
    """Figures of a version, over all servers.

    Attributes:
        answered: requests with scores.
        failed: requests with an error of any code, except cancellations by the client.
        sampled: approximate number of responses whose scores, by output, were counted.
        ids: rows looked up, and ids outside.
        unknown_ids: in no id map, or outside their tables.
    """

    answered: float = 0.0
    failed: float = 0.0
    seconds: Histogram = field(default_factory=Histogram)
    scores: Mapping[str, Histogram] = field(default_factory=dict)
    sampled: float = 0.0
    ids: float = 0.0
    unknown_ids: float = 0.0

    @property
    def requests(self) -> float:
        """Answered and failed requests."""
        return self.answered + self.failed


def figures_of(counts: Counts) -> VersionFigures:
    """Compute figures from counts."""
    codes: dict[str, float] = {}
    seconds: dict[str, float] = {}
    scores: dict[str, dict[str, float]] = {}
    for (name, *labels), value in counts.items():
        if name == version_counts.REQUESTS:
            codes[labels[0]] = value
        elif name == version_counts.REQUEST_SECONDS:
            seconds[labels[0]] = value
        elif name == version_counts.SCORES:
            scores.setdefault(labels[0], {})[labels[1]] = value
    unknown = counts.get((version_counts.IDS_OUT_OF_RANGE,), 0.0)
    return VersionFigures(
        answered=codes.get("OK", 0.0),
        failed=sum(count for code, count in codes.items() if code not in _NO_ERROR),
        seconds=histogram_of(seconds, least=0.0),
        scores={
            output: histogram
            for output, boundaries in scores.items()
            if (histogram := histogram_of(boundaries)).count
        },
        sampled=counts.get((version_counts.BATCHES,), 0.0) / SCORES_EVERY,
        ids=counts.get((version_counts.ROWS,), 0.0) + unknown,
        unknown_ids=unknown,
    )
