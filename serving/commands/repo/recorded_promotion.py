"""Promotes a version by requests that were recorded, which both versions score here."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic, time

import numpy as np
from numpy.typing import NDArray

from serving.commands.opened_version import opened_model
from serving.errors import PromotionError
from serving.remote.promotion.comparison import Comparison
from serving.remote.promotion.figures import VersionFigures
from serving.remote.promotion.histogram import Bucket, Histogram, binned
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import Model
from sharded_infer.errors import InputError, RequestError
from sharded_infer.repositories.labels import Labels
from sharded_infer.repositories.repository import Repository
from sharded_infer.samples.record import (
    RecordedRequest,
    local_record,
    record_files,
    recorded_requests,
)

_BINS = 200


def promote_recorded(
    repository: Repository, model: str, record: str, source: str, target: str
) -> tuple[int, Comparison]:
    """Move `target` to the version of `source` if recorded requests break no bound of its spec.

    Raises:
        PromotionError: a bound is broken, or too few requests are recorded to know.
        InputError: there are no bounds, both labels mean one version, another process promotes, or
            as `recorded_requests`.
        NotFoundError: there is no such model or label.
    """
    labels = repository.label_history(model)
    _check_ended(model, labels)
    version = labels.version(source)
    if version == labels.version(target):
        raise InputError(f"{model}: {source} and {target} both mean version {version}")
    with (
        opened_model(repository.location, model, source) as new,
        opened_model(repository.location, model, target) as old,
        local_record(record, model) as folder,
    ):
        bounds = new.spec.release
        if bounds.is_empty:
            raise InputError(
                f"{model} version {version}: its spec has no bound to watch; expected one in "
                "[release]"
            )
        runs = _VersionRun(new), _VersionRun(old)
        for number, request in enumerate(recorded_requests(record_files(folder, model))):
            # In turns: the second finds rows in caches.
            for version_run in runs if number % 2 else runs[::-1]:
                version_run.score(request)
    new_figures, old_figures = _figures(runs)
    comparison = Comparison(new_figures, old_figures, target)
    reason = comparison.broken(bounds) or comparison.lacking(bounds, source)
    if reason:
        raise PromotionError(f"{model}: {target} stays at its version: {reason}")

    def change(labels: Labels) -> Labels:
        _check_ended(model, labels)
        return labels.moved(target, version)

    repository.change_labels(model, change)
    return version, comparison


def _check_ended(model: str, labels: Labels) -> None:
    promotion = labels.promotion
    if promotion is not None and not promotion.has_expired(time()):
        raise InputError(f"{model}: {promotion.source} is promoted by {promotion.by}")


@dataclass(slots=True)
class _VersionRun:
    """Requests that a version has scored, and what they took."""

    model: Model
    failed: int = 0
    unknown_ids: int = 0
    ids: int = 0
    seconds: list[float] = field(default_factory=list)
    scores: dict[str, list[NDArray[np.float32]]] = field(default_factory=lambda: defaultdict(list))

    def score(self, request: RecordedRequest) -> None:
        started = monotonic()
        try:
            batch = self.model.read(request.inputs)
            ran = run_batch(self.model, batch)
        except RequestError:
            self.failed += 1
            return
        self.seconds.append(monotonic() - started)
        self.unknown_ids += ran.ids_outside
        self.ids += sum(step[1] for step in ran.work.steps)
        for name, scores in zip(self.model.spec.tower.outputs, ran.scores, strict=True):
            self.scores[name].append(scores.ravel())


def _figures(runs: Sequence[_VersionRun]) -> list[VersionFigures]:
    """Of versions, whose histograms have equal bounds."""
    seconds = _histograms([np.array(run.seconds) for run in runs])
    shared = [name for name in runs[0].scores if all(name in run.scores for run in runs)]
    scores = {
        name: _histograms([np.concatenate(run.scores[name]) for run in runs]) for name in shared
    }
    return [
        VersionFigures(
            len(run.seconds),
            run.failed,
            seconds[place],
            {name: histograms[place] for name, histograms in scores.items()},
            len(run.seconds),
            run.ids + run.unknown_ids,
            run.unknown_ids,
        )
        for place, run in enumerate(runs)
    ]


def _histograms(numbers: Sequence[NDArray[np.floating]]) -> list[Histogram]:
    counts, edges = binned([own[np.isfinite(own)] for own in numbers], _BINS)
    bounds = list(pairwise(edges))
    return [
        Histogram(tuple(Bucket(*bound, count) for bound, count in zip(bounds, own, strict=True)))
        for own in counts
    ]
