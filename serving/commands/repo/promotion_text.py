"""Promotions in words."""

from collections.abc import Iterator
from datetime import UTC, datetime

from sharded_infer.repositories.labels import Labels
from sharded_infer.repositories.promotion.record import Promotion


def promotion_text(promotion: Promotion, now: float) -> str:
    """Progress and owner of a promotion; `now` is in seconds since 1970."""
    steps = len(promotion.steps)
    words = (
        f"{promotion.source} version {promotion.version} is promoted to {promotion.target} "
        f"(version {promotion.before}): step {promotion.step + 1} of {steps}, {promotion.share}% "
        f"for {max(0.0, now - promotion.since):.0f} s of {promotion.step_seconds:g} s, by "
        f"{promotion.by}"
    )
    if promotion.has_expired(now):
        words += (
            f", who has said nothing since {_time(promotion.until)}: {promotion.target} has all "
            "requests until it is resumed (repo promote --resume)"
        )
    return words


def promotion_lines(labels: Labels, now: float) -> Iterator[str]:
    """The promotion in progress, and promotions that ended early."""
    if labels.promotion is not None:
        yield promotion_text(labels.promotion, now)
    for label, past in labels.ended.items():
        for one in past:
            yield f"{label} version {one.version} {_time(one.at)}: {one.reason}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
