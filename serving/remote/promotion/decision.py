"""The promoter's next act, decided without I/O."""

from dataclasses import dataclass
from enum import Enum, auto

from serving.remote.promotion.comparison import Comparison
from sharded_infer.repositories.promotion.record import Promotion
from sharded_infer.specs.release_spec import ReleaseSpec

# A server whose page cannot be read for longer is gone.
MOST_UNREAD_SECONDS = 30.0


class Act(Enum):
    """Next step of a promotion."""

    WAIT = auto()
    ADVANCE = auto()
    FINISH = auto()
    TAKE_BACK = auto()
    # No evidence against the version, and too little for it.
    STOP = auto()


@dataclass(frozen=True, slots=True)
class NextAct:
    """An act, with its reason if it ends the promotion."""

    act: Act
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """The server whose page has been unreadable for longest."""

    url: str = ""
    seconds: float = 0.0


def decide(
    promotion: Promotion,
    comparison: Comparison,
    bounds: ReleaseSpec,
    now: float,
    unread: Unread,
) -> NextAct:
    """Decide what to do at a time in seconds since 1970.

    A step ends when its time is over and enough is known, or when all steps should have ended.
    """
    share = f"{promotion.share}%"
    if reason := comparison.broken(bounds):
        return NextAct(Act.TAKE_BACK, f"taken back from {share}: {reason}")
    if unread.seconds > MOST_UNREAD_SECONDS:
        words = f"{unread.url} has not been readable for {unread.seconds:.0f} s"
        return NextAct(Act.STOP, f"stopped at {share}: {words}")
    took = now - promotion.since
    if took < promotion.step_seconds:
        return NextAct(Act.WAIT)
    if not (lacking := comparison.lacking(bounds, promotion.source)):
        last = promotion.step == len(promotion.steps) - 1
        return NextAct(Act.FINISH if last else Act.ADVANCE)
    if took < promotion.step_seconds + promotion.watch_seconds:
        return NextAct(Act.WAIT)
    return NextAct(Act.STOP, f"stopped at {share}: {lacking} in {took:.0f} s")
