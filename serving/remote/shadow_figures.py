"""Differences of a shadow's scores from the default version's, from a metrics page."""

from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.samples import Sample

_PREFIX = "sharded_infer_shadow_"
_SCORES, _DEFAULT_SCORES = f"{_PREFIX}scores_bucket", f"{_PREFIX}default_scores_bucket"
_DIFFERENCE = f"{_PREFIX}score_difference"


@dataclass(frozen=True, slots=True)
class ShadowOutput:
    """Mean and largest score differences (of the last minute or two), and distance of an output.

    The distance is the Kolmogorov-Smirnov statistic, at the boundaries of the buckets.
    """

    output: str
    mean_difference: float
    largest_difference: float
    distance: float


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """A shadow's scored, failed and dropped (not tried) requests, since the server's start."""

    scored: int
    failed: int
    dropped: int
    outputs: tuple[ShadowOutput, ...]

    @property
    def worst(self) -> ShadowOutput | None:
        """The output whose distributions are furthest apart; None if none was compared."""
        return max(self.outputs, key=lambda one: (one.distance, one.mean_difference), default=None)


def shadow_figures(samples: Iterable[Sample]) -> dict[tuple[str, int], ShadowFigures]:
    """Figures of all shadows of a page, by model and version."""
    by_version: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        if sample.name.startswith(_PREFIX):
            key = (sample.labels["model"], int(sample.labels["version"]))
            by_version.setdefault(key, []).append(sample)
    return {key: _figures(found) for key, found in by_version.items()}


def _figures(samples: list[Sample]) -> ShadowFigures:
    codes = {s.labels["code"]: s.value for s in samples if s.name == f"{_PREFIX}requests_total"}
    dropped = sum(s.value for s in samples if s.name == f"{_PREFIX}dropped_requests_total")
    named = dict.fromkeys(s.labels["output"] for s in samples if "output" in s.labels)
    outputs = [
        _output(name, [s for s in samples if s.labels.get("output") == name]) for name in named
    ]
    scored = codes.pop("OK", 0)
    compared = tuple(one for one in outputs if one is not None)
    return ShadowFigures(int(scored), int(sum(codes.values())), int(dropped), compared)


def _output(output: str, samples: list[Sample]) -> ShadowOutput | None:
    values = {(s.name, s.labels.get("le", "")): s.value for s in samples}
    count = values.get((f"{_DIFFERENCE}_bucket", "+Inf"), 0)
    if not count:
        return None
    distances = (
        abs(value - values[_DEFAULT_SCORES, boundary])
        for (name, boundary), value in values.items()
        if name == _SCORES
    )
    return ShadowOutput(
        output,
        values[f"{_DIFFERENCE}_sum", ""] / count,
        values[f"{_PREFIX}largest_score_difference", ""],
        max(distances) / count,
    )
