"""Promotes a version step by step, and rolls back if its figures break a bound.

begin   write the promotion to the file of labels, unless somebody else promotes
look    read the servers' pages; renew the lease in the file; decide; act

All state that must outlive this process is in the file of labels, from which another can resume.
"""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from secrets import token_hex
from time import sleep, time

from serving.errors import PromotionError
from serving.remote.caller import ANONYMOUS, Caller
from serving.remote.promotion.comparison import Comparison
from serving.remote.promotion.decision import Act, decide
from serving.remote.promotion.watched_pages import WatchedPages
from sharded_infer.errors import InputError
from sharded_infer.repositories.labels import Labels
from sharded_infer.repositories.promotion.record import MOST_STEPS, WHOLE, Promotion
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.release_spec import ReleaseSpec
from sharded_infer.specs.spec_file import parse_spec

STEPS = (1, 5, 25, 50)
_LOOK_SECONDS = 1.0
# One write may fail before servers take the version back.
_RENEWALS_A_LEASE = 3
_LOOKS_A_STEP = 4

Told = Callable[[Promotion, Comparison | None], None]


class OnSilence(StrEnum):
    """Action if too little is known at the end of a step."""

    ROLLBACK = "rollback"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class PromotionPlan:
    """Settings of a promotion of source's version to target; steps are percents of the requests.

    `watch_seconds` are of all steps together. Without renewal for `lease_seconds`, servers give the
    version no more requests, and another process may go on.
    """

    source: str = "canary"
    target: str = "stable"
    steps: tuple[int, ...] = STEPS
    watch_seconds: float = 600.0
    on_silence: OnSilence = OnSilence.ROLLBACK
    lease_seconds: float = 60.0

    def check(self) -> None:
        """Raise InputError, with what was expected, for settings that make no sense."""
        if self.source == self.target:
            raise InputError(f"label {self.source!r}: expected another label to promote to")
        ascending = all(0 < a < b for a, b in zip((0.5, *self.steps), self.steps, strict=False))
        if not 0 < len(self.steps) <= MOST_STEPS or not ascending or self.steps[-1] >= WHOLE:
            raise InputError(
                f"steps: expected 1 to {MOST_STEPS} ascending percents, 1 to {WHOLE - 1}, got "
                f"{','.join(map(str, self.steps))}"
            )
        for name, seconds in (("watch", self.watch_seconds), ("lease", self.lease_seconds)):
            if not seconds > 0:
                raise InputError(f"{name}: expected more than 0 s, got {seconds:g}")


def promote(
    repository: Repository,
    model: str,
    servers: Sequence[str],
    plan: PromotionPlan = PromotionPlan(),
    *,
    resume: bool = False,
    caller: Caller = ANONYMOUS,
    told: Told = lambda promotion, comparison: None,
) -> int:
    """Promote a version: its share of the requests grows while its figures keep its spec's bounds.

    Args:
        servers: URLs of the HTTP ports of all servers that follow the labels.
        resume: continue the current step of a promotion whose promoter has ended, with its labels,
            steps and times. Waits until that promoter's lease is over.
        caller: for the metrics pages.
        told: called at each look, and with None at the start of a step.

    Returns:
        The version that the target now means.

    Raises:
        PromotionError: the version was taken back, or somebody else ended or took over the
            promotion.
        InputError: there are no bounds, the plan makes no sense, another process promotes, or a
            metrics page has never been readable.
        NotFoundError: there is no such model or label.
        ArtifactError: the version or the file of labels is damaged.
        StorageError: the repository cannot be read or written. The promotion may be resumed.
    """
    plan.check()
    pages = WatchedPages(servers, model, caller)
    repository.versions(model)
    promoter = _Promoter(repository, model, plan)
    while resume and (held := repository.label_history(model).promotion):
        if held.has_expired(time()):
            break
        sleep(min(_LOOK_SECONDS, max(0.01, held.until - time())))
    # Before anything changes: a page that cannot be read, or a version without bounds.
    pages.begin()
    promotion, bounds = promoter.begin(resume=resume)
    while True:
        pages.begin()
        told(promotion, None)
        promotion, done = _watch_step(promoter, promotion, bounds, pages, told)
        if done:
            return promotion.version


def _watch_step(
    promoter: "_Promoter",
    promotion: Promotion,
    bounds: ReleaseSpec,
    pages: WatchedPages,
    told: Told,
) -> tuple[Promotion, bool]:
    """Watch a step to its end; return the promotion at the next step, and True after the last."""
    pause = min(
        _LOOK_SECONDS,
        promotion.step_seconds / _LOOKS_A_STEP,
        promoter.plan.lease_seconds / _RENEWALS_A_LEASE / 2,
    )
    while True:
        sleep(pause)
        comparison, unread = pages.look(promotion)
        told(promotion, comparison)
        now = time()
        following = decide(promotion, comparison, bounds, now, unread)
        if following.act is Act.ADVANCE:
            return promoter.renewed(promotion.at_step(promotion.step + 1, now)), False
        if following.act is Act.FINISH:
            promoter.finish(promotion)
            return promotion, True
        if following.act in (Act.TAKE_BACK, Act.STOP):
            keep = following.act is Act.STOP and promoter.plan.on_silence is OnSilence.KEEP
            promoter.take_back(following.reason, keep_weights=keep)
        if promotion.until - now < promoter.plan.lease_seconds * (1 - 1 / _RENEWALS_A_LEASE):
            promotion = promoter.renewed(promotion)


class _Promoter:
    def __init__(self, repository: Repository, model: str, plan: PromotionPlan) -> None:
        self._repository, self._model = repository, model
        self.plan = plan
        # A process of another container may have the same host and number.
        self._by = f"{socket.gethostname()}/{os.getpid()}/{token_hex(4)}"

    def begin(self, *, resume: bool) -> tuple[Promotion, ReleaseSpec]:
        """Write the promotion to the file, or take over one that has expired."""

        def change(labels: Labels) -> Labels:
            promotion = self._begun(labels, resume=resume)
            self._bounds(promotion.version)
            return labels.promoting(promotion)

        labels = self._repository.change_labels(self._model, change)
        promotion = self._own(labels)
        return promotion, self._bounds(promotion.version)

    def renewed(self, promotion: Promotion) -> Promotion:
        def change(labels: Labels) -> Labels:
            self._own(labels)
            return labels.promoting(replace(promotion, until=time() + self.plan.lease_seconds))

        return self._own(self._repository.change_labels(self._model, change))

    def finish(self, promotion: Promotion) -> None:
        """Move the target to the version, and remove all weights, in one step."""

        def change(labels: Labels) -> Labels:
            self._own(labels)
            return labels.weighted({}).moved(promotion.target, promotion.version)

        self._repository.change_labels(self._model, change)

    def take_back(self, reason: str, *, keep_weights: bool) -> None:
        def change(labels: Labels) -> Labels:
            self._own(labels)
            return labels.taken_back(reason, time(), keep_weights=keep_weights)

        labels = self._repository.change_labels(self._model, change)
        weights = " ".join(f"{label}={weight}" for label, weight in labels.weights.items())
        raise PromotionError(f"{self._model}: {reason}; weights are now {weights}")

    def _begun(self, labels: Labels, *, resume: bool) -> Promotion:
        now, plan, current = time(), self.plan, labels.promotion
        until = now + plan.lease_seconds
        if current is None:
            if resume:
                raise InputError(f"{self._model}: no promotion to resume; expected labels instead")
            return self._new(labels, now, until)
        words = f"{current.source} to {current.target} is promoted by {current.by}"
        if not current.has_expired(now):
            raise InputError(
                f"{self._model}: {words}, for {current.until - now:.0f} s more unless it says so "
                "again; --resume waits for that"
            )
        if not resume and (current.source, current.target) != (plan.source, plan.target):
            raise InputError(
                f"{self._model}: {words}, which has ended; --resume goes on with it, and "
                f"repo label {current.target}={WHOLE} ends it"
            )
        return replace(current.at_step(current.step, now), by=self._by, until=until)

    def _new(self, labels: Labels, now: float, until: float) -> Promotion:
        plan = self.plan
        version, before = labels.version(plan.source), labels.version(plan.target)
        if version == before:
            raise InputError(
                f"{self._model}: {plan.source} and {plan.target} both mean version {version}"
            )
        if others := sorted(set(labels.weights) - {plan.source, plan.target}):
            raise InputError(
                f"{self._model}: label {others[0]!r} has a weight; expected none but those of "
                f"{plan.source} and {plan.target} (repo label --clear-weights)"
            )
        return Promotion(
            source=plan.source,
            target=plan.target,
            version=version,
            before=before,
            steps=plan.steps,
            step=0,
            since=now,
            watch_seconds=plan.watch_seconds,
            by=self._by,
            until=until,
        )

    def _bounds(self, version: int) -> ReleaseSpec:
        where = f"{self._model} version {version}"
        bounds = parse_spec(self._repository.manifest(self._model, version).spec, where).release
        if bounds.is_empty:
            raise InputError(f"{where}: its spec has no bound to watch; expected one in [release]")
        return bounds

    def _own(self, labels: Labels) -> Promotion:
        """The promotion in the file, which must be of this process."""
        promotion = labels.promotion
        if promotion is None:
            raise PromotionError(
                f"{self._model}: the promotion has ended: somebody moved a label or set weights"
            )
        if promotion.by != self._by:
            raise PromotionError(f"{self._model}: the promotion was taken over by {promotion.by}")
        return promotion
