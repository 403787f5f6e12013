"""Figures of recorded requests by version, and of their labels."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from serving.remote.promotion.histogram import binned
from sharded_infer.errors import InputError
from sharded_infer.inputs.outcomes import LABEL
from sharded_infer.quality.auc import auc
from sharded_infer.samples.parquet import read_parquet
from sharded_infer.samples.record import LENGTHS, RecordedRequest

_BINS = 20
Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of numbers."""

    least: float
    mean: float
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, numbers: Numbers) -> Self:
        """Statistics of one number or more."""
        numbers = numbers.astype(np.float64)
        p50, p99 = np.percentile(numbers, [50, 99])
        return cls(*map(float, (numbers.min(), numbers.mean(), p50, p99, numbers.max())))


@dataclass(frozen=True, slots=True)
class ScoreFigures:
    """Scores of an output.

    Attributes:
        spread: of finite scores; None: there are none.
        edges, counts: their histogram, `[bins + 1]` and `[bins]`.
        auc: None without labels of both classes.
    """

    spread: Spread | None
    edges: list[float]
    counts: list[int]
    not_finite: int
    auc: float | None = None


@dataclass(frozen=True, slots=True)
class VersionFigures:
    """Recorded requests of one version.

    Attributes:
        ids_outside: unknown ids, or outside of their tables.
        first, last: seconds since 1970.
        seconds: of a request in the server.
        sizes: samples of a request.
        ids: of a sample, by sparse input.
        labelled: samples that have a label.
    """

    requests: int
    failed: int
    samples: int
    ids_outside: int
    first: float
    last: float
    seconds: Spread
    sizes: Spread
    ids: dict[str, Spread]
    scores: dict[str, ScoreFigures]
    labelled: int


class Labels:
    """Labels of samples by request and candidate."""

    def __init__(self, path: Path, on: Sequence[str]) -> None:
        """Reads a Parquet file.

        Args:
            on: its columns of the request's id and, unless a request has one label, of the
                candidate's number from 0. Labels are in `label.<output>`, else in `label`.

        Raises InputError for an unreadable file, or without these columns.
        """
        table = read_parquet(path)
        names = [n for n in table.column_names if n == LABEL or n.startswith(f"{LABEL}.")]
        missing = [name for name in on if name not in table.column_names]
        if not 1 <= len(on) <= 2 or missing or not names:
            expected = missing[0] if missing else "1 or 2 columns of --on" if names else LABEL
            raise InputError(
                f"{path}: expected {expected}, got columns {', '.join(table.column_names)}"
            )
        self._has_candidates = len(on) == 2
        self._rows: dict[str, dict[int, int]] = defaultdict(dict)
        try:
            self._columns: dict[str, Numbers] = {
                name: table.column(name).to_numpy().astype(np.float64) for name in names
            }
            places = table.column(on[1]).to_pylist() if self._has_candidates else [0] * len(table)
            candidates = [int(place) for place in places]
            ids = map(str, table.column(on[0]).to_pylist())
            known = [own[np.isfinite(own)] for own in self._columns.values()]
            if not np.isin(np.concatenate(known), (0.0, 1.0)).all():
                raise ValueError("a label is neither 0 nor 1")
        # Texts, nulls, or two columns of one name.
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: expected labels and candidates as numbers: {error}"
            ) from error
        for row, (request_id, candidate) in enumerate(zip(ids, candidates, strict=True)):
            self._rows[request_id][candidate] = row

    def of(self, request: RecordedRequest, output: str) -> Numbers:
        """fp64 `[samples]`; NaN without a label."""
        labels = np.full(request.samples, np.nan)
        column = self._columns.get(f"{LABEL}.{output}", self._columns.get(LABEL))
        for candidate, row in self._rows.get(request.request_id, {}).items():
            if column is None or (self._has_candidates and not 0 <= candidate < len(labels)):
                continue
            labels[candidate if self._has_candidates else slice(None)] = column[row]
        return labels


@dataclass(slots=True)
class _Gathered:
    """Numbers of one version so far; of scores and labels, copies."""

    failed: int = 0
    ids_outside: int = 0
    times: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    ids: dict[str, list[Numbers]] = field(default_factory=lambda: defaultdict(list))
    scores: dict[str, list[Numbers]] = field(default_factory=lambda: defaultdict(list))
    labels: dict[str, list[Numbers]] = field(default_factory=lambda: defaultdict(list))

    def add(self, request: RecordedRequest, labels: Labels | None) -> None:
        self.failed += request.status != "OK"
        self.ids_outside += request.ids_outside
        self.times.append(request.seconds["time"])
        self.seconds.append(request.server_seconds)
        self.sizes.append(request.samples)
        for name, lengths in request.inputs.items():
            if name.endswith(LENGTHS):
                times = request.samples // max(1, len(lengths))
                self.ids[name.removesuffix(LENGTHS)].append(np.repeat(lengths, times))
        for name, values in request.scores.items():
            self.scores[name].append(values.copy())
            if labels is not None and values.ndim == 1:
                self.labels[name].append(labels.of(request, name))

    def figures(self) -> VersionFigures:
        areas = {name: _auc(self.scores[name], own) for name, own in self.labels.items()}
        return VersionFigures(
            len(self.sizes),
            self.failed,
            sum(self.sizes),
            self.ids_outside,
            min(self.times),
            max(self.times),
            Spread.of(np.array(self.seconds)),
            Spread.of(np.array(self.sizes)),
            {name: Spread.of(np.concatenate(own)) for name, own in self.ids.items()},
            {
                name: _score_figures(np.concatenate([v.ravel() for v in own]), areas.get(name))
                for name, own in self.scores.items()
            },
            max(
                (int(np.isfinite(np.concatenate(own)).sum()) for own in self.labels.values()),
                default=0,
            ),
        )


def version_figures(
    requests: Iterable[RecordedRequest], labels: Labels | None
) -> Mapping[int, VersionFigures]:
    """Figures by version, ascending; InputError as `recorded_requests`, or for other labels."""
    gathered: dict[int, _Gathered] = defaultdict(_Gathered)
    for request in requests:
        gathered[request.version].add(request, labels)
    return {version: own.figures() for version, own in sorted(gathered.items())}


def _auc(scores: list[Numbers], labels: list[Numbers]) -> float | None:
    truth, values = np.concatenate(labels), np.concatenate(scores)
    known = np.isfinite(truth) & np.isfinite(values)
    if len(np.unique(truth[known])) < 2:
        return None
    return auc(truth[known], values[known])


def _score_figures(scores: Numbers, area: float | None) -> ScoreFigures:
    finite = scores[np.isfinite(scores)]
    counts, edges = binned([finite], _BINS)
    spread = Spread.of(finite) if len(finite) else None
    return ScoreFigures(spread, edges, counts[0], len(scores) - len(finite), area)
