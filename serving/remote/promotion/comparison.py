"""Comparison of the promoted version with the previous one: broken bounds, and missing figures.

A bound is broken if figures as bad have a chance of one in a thousand comparisons while the bound
is just kept. So eight slow requests of 400 break nothing, and ten failing ones do.
"""

from dataclasses import dataclass
from math import sqrt

from serving.remote.promotion.chance import DEVIATIONS, highest_share, is_beyond_chance
from serving.remote.promotion.figures import VersionFigures
from serving.remote.promotion.histogram import Histogram
from sharded_infer.specs.release_spec import ReleaseSpec

# Of the promoted version, to judge errors and ids; of both, to end a step, and to judge times: the
# first requests of a version that was just loaded are slow.
LEAST_FAILED, LEAST_ANSWERED, LEAST_TIMED = 10, 100, 300
# Sampled responses of both.
LEAST_SAMPLED = 10
_P99, _UPPER_HALF = 0.99, 0.5


@dataclass(frozen=True, slots=True)
class Comparison:
    """Figures of the promoted version and of the previous one, with its label, during a step."""

    new: VersionFigures
    old: VersionFigures
    old_name: str

    def broken(self, bounds: ReleaseSpec) -> str:
        """The broken bound, with figures; empty if no bound is known to be broken."""
        return (
            self._errors(bounds.max_error_rate)
            or self._unknown_ids(bounds.max_unknown_ids)
            or self._times(bounds.max_p99_ratio)
            or self._scores(bounds.max_score_shift)
        )

    def lacking(self, bounds: ReleaseSpec, new_name: str) -> str:
        """Figures that are missing to know that no bound is broken; empty if none are."""
        for name, figures in ((new_name, self.new), (self.old_name, self.old)):
            is_timed = bounds.max_p99_ratio is not None
            least = LEAST_TIMED if is_timed else LEAST_ANSWERED
            if figures.answered < least:
                return (
                    f"{figures.answered:.0f} answered requests of {name}, expected at least {least}"
                )
            if is_timed and not figures.seconds.count:
                return f"no request times of {name} on the metrics pages (serve --metrics)"
            if bounds.max_score_shift is not None and (
                figures.sampled < LEAST_SAMPLED or not figures.scores
            ):
                return (
                    f"scores of {figures.sampled if figures.scores else 0:.0f} responses of "
                    f"{name}, expected at least {LEAST_SAMPLED} (serve --metrics full)"
                )
        return ""

    def _errors(self, bound: float | None) -> str:
        new, old = self.new, self.old
        if bound is None or new.requests < LEAST_FAILED:
            return ""
        allowed = min(1.0, highest_share(old.failed, old.requests) + bound)
        if not is_beyond_chance(new.failed, new.requests, allowed):
            return ""
        usual = old.failed / old.requests
        return (
            f"{new.failed / new.requests:.2%} of {new.requests:.0f} requests fail, {usual:.2%} of "
            f"{self.old_name}'s, {bound:.2%} more allowed"
        )

    def _unknown_ids(self, bound: float | None) -> str:
        new = self.new
        if bound is None or new.requests < LEAST_FAILED or not new.ids:
            return ""
        share = new.unknown_ids / new.ids
        # The ids of a request are correlated: it counts as one.
        if not is_beyond_chance(share * new.answered, new.answered, bound):
            return ""
        return f"{share:.2%} of the ids are unknown, {bound:.2%} allowed"

    def _times(self, bound: float | None) -> str:
        new, old = self.new.seconds, self.old.seconds
        if bound is None or min(new.count, old.count) < LEAST_TIMED:
            return ""
        ratio = new.quantile(_P99) / old.quantile(_P99)
        if ratio <= bound or not _is_slower(new, old, bound):
            return ""
        return f"p99 {ratio:.3g} x {self.old_name}'s, {bound:g} allowed"

    def _scores(self, bound: float | None) -> str:
        new, old = self.new, self.old
        if bound is None or min(new.sampled, old.sampled) < LEAST_SAMPLED:
            return ""
        for output in sorted(new.scores.keys() & old.scores.keys()):
            mean, deviation = new.scores[output].mean_and_deviation()
            usual, spread = old.scores[output].mean_and_deviation()
            if not spread:
                continue
            shift = abs(mean - usual) / spread
            # Scores of one response may be correlated: it counts as one.
            error = sqrt((deviation / spread) ** 2 / new.sampled + 1 / old.sampled)
            if shift - DEVIATIONS * error > bound:
                return (
                    f"the mean of {output} is shifted by {shift:.3g} standard deviations of "
                    f"{self.old_name}'s, {bound:g} allowed"
                )
        return ""


def _is_slower(new: Histogram, old: Histogram, bound: float) -> bool:
    """True if the upper half of times is more than `bound` times as long, beyond chance.

    The ratio of two quantiles is as coarse as the buckets. But the number of times above a boundary
    is exact. It is compared with the share of the old times that would exceed the boundary if they
    took `bound` times as long.
    """
    for bucket in new.buckets:
        share = old.above(bucket.low / bound) / old.count
        if share <= _UPPER_HALF:
            allowed = max(1 - _P99, highest_share(share * old.count, old.count))
            if is_beyond_chance(new.above(bucket.low), new.count, allowed):
                return True
    return False
