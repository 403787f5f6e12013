"""Comparison of the imported model with the trained model by fp32 scores.

The gate compares a version with the imported weights; this check compares those weights with the
trained modules or recorded scores. Neither side is rounded, so the bound is tight: a share of the
largest number.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quant.report import ImportReport
from quant.sources.checkpoint import LiveSource
from quant.sources.weight_source import WeightSource
from sharded_infer.errors import GateError, WeightsError
from sharded_infer.importing.import_hint import likely_mistake
from sharded_infer.importing.trained_model import TrainedModel
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.progress import Progress, no_progress
from sharded_infer.quality.fp32_model import TRAINED, Fp32Model
from sharded_infer.quality.quality import CalibrationSamples, batches
from sharded_infer.specs.model_spec import ModelSpec

# Reordered sums of a thousand fp32 numbers differ by less; a wrong import by far more.
DEFAULT_BOUND = 1e-4
_STEPS = 4  # of a module's own dtype, where that is coarser than the bound
_SMALLEST = 1e-6  # of the largest number: below, everything counts as 0
_MODULE, _MODULES, _RECORDED = (
    "the trained module",
    "the trained modules",
    "the trained model's recorded scores",
)


@dataclass(slots=True)
class _Difference:
    """The largest difference, and the largest trained number."""

    difference: float = 0.0
    largest: float = 0.0
    step: float = 0.0

    def add(self, trained: Tensor, read: Tensor) -> None:
        if trained.is_floating_point():
            self.step = max(self.step, torch.finfo(trained.dtype).eps)
        expected = trained.double()
        # Non-finite trained numbers are refused, or stored as 0, elsewhere.
        known = torch.isfinite(expected)
        if not bool(known.any()):
            return
        found = (read.double() - expected)[known].abs().max()
        self.difference = max(self.difference, float(found.nan_to_num(nan=torch.inf)))
        self.largest = max(self.largest, float(expected[known].abs().max()))

    @property
    def share(self) -> float:
        return self.difference / max(self.largest, _SMALLEST)

    def allowed(self, bound: float) -> float:
        return max(bound, _STEPS * self.step)

    def refusal(self, what: str, allowed: float, why: str) -> GateError:
        return GateError(
            f"{what} by {self.difference:.3g}, {self.share:.3g} of the largest; {allowed:g} is "
            f"allowed (gate.max_import_diff){why}"
        )


def check_import(
    model: Fp32Model,
    source: WeightSource,
    samples: ModelInput | None,
    calibration: CalibrationSamples | None = None,
    progress: Progress = no_progress,
    *,
    sent: Sequence[ModelInput] = (),
) -> ImportReport | None:
    """Compare the imported model with the trained model; None if nothing is comparable.

    With modules in memory (a `LiveSource`), each feature's pooled embeddings or sequence rows are
    compared with the modules' outputs, then the scores. With recorded scores, only the scores.

    Args:
        model: its spec comes from `resolve_spec`.
        samples: golden requests, unless they are the first calibration samples.
        calibration: more samples, optionally with the trained model's scores.
        sent: all samples with ids as clients send them, for a source that scores requests.

    Raises:
        GateError: a difference beyond `gate.max_import_diff`; names feature and table, or the
            output.
        SpecError, WeightsError: the modules cannot be called on the samples; see `TrainedModel`.
    """
    bound = model.spec.gate.max_import_diff or DEFAULT_BOUND
    allowed = bound
    measured = None if calibration is None else calibration.model_input
    parts = [part for part in (samples, measured) if part is not None]
    names, counts, embeddings, scores = [], [0], [], [0.0]
    trained = TrainedModel(model.spec, source) if isinstance(source, LiveSource) else None
    if trained is not None and trained.features:
        found = _against_modules(model, trained, parts, bound, progress)
        names.append(_MODULES)
        counts.append(sum(part.batch_size for part in parts))
        embeddings.append(found[0])
        scores.append(found[1])
        allowed = max(allowed, found[2])
    if isinstance(source, LiveSource) and source.scores is not None and sent:
        pairs = list(zip(sent, parts, strict=True))
        scores.append(_against_module(model, source.scores, pairs, bound, progress))
        names.append(_MODULE)
        counts.append(sum(part.batch_size for part in sent))
    if calibration is not None and calibration.references:
        scores.append(_against_recorded(model, calibration, bound, progress))
        names.append(_RECORDED)
        counts.append(calibration.model_input.batch_size)
    if not names:
        return None
    return ImportReport(
        compared_with=" and ".join(names),
        samples=max(counts),
        max_embedding_diff=max(embeddings, default=None),
        max_score_diff=max(scores),
        allowed=allowed,
    )


def _against_modules(
    model: Fp32Model,
    trained: TrainedModel,
    parts: Iterable[ModelInput],
    bound: float,
    progress: Progress,
) -> tuple[float, float, float]:
    """The largest differences of embeddings and scores, as shares, and the largest allowed."""
    spec = model.spec
    gaps = [_Difference() for _ in spec.table_features]
    scored = {name: _Difference() for name in spec.tower.outputs}
    parts = list(parts)
    total, done = sum(part.batch_size for part in parts), 0
    for batch in (batch for part in parts for batch in batches(part)):
        [read] = model.pooled(batch, [TRAINED])
        columns, as_trained = _feature_columns(model, batch), read.clone()
        for place, found in trained.embeddings(batch).items():
            own = read[:, columns[place]]
            _check_shape(spec, place, found, own)
            gaps[place].add(found, own)
            as_trained[:, columns[place]] = found.float()
        whole = trained.scores(batch)
        expected = model.score(batch, as_trained) if whole is None else whole
        _add_scores(scored, expected, model.score(batch, read))
        done += batch.batch_size
        progress("comparing with the trained model", done, total)
    for feature, gap in zip(spec.table_features, gaps, strict=True):
        if not gap.share <= gap.allowed(bound):
            raise gap.refusal(
                f"model {spec.name!r}: feature {feature.name!r}, table {feature.table.name!r}: "
                + ("rows of the sequence" if feature.sequence else "pooled embeddings")
                + " differ from the trained module's",
                gap.allowed(bound),
                ": its weights, pooling or ids are not those of the model",
            )
    widest = max(gap.allowed(bound) for gap in gaps)
    for name, gap in scored.items():
        if not gap.share <= gap.allowed(widest):
            raise gap.refusal(
                f"model {spec.name!r}: output {name!r} differs from the trained model's",
                gap.allowed(widest),
                "; all embeddings agree: the tower, its dense inputs or its outputs do not",
            )
    return max(f.share for f in gaps), max(f.share for f in scored.values()), widest


def _against_module(
    model: Fp32Model,
    trained: Callable[[ModelInput], Mapping[str, NDArray[np.float32]]],
    samples: Sequence[tuple[ModelInput, ModelInput]],
    bound: float,
    progress: Progress,
) -> float:
    """The largest difference from the whole module's scores, as a share.

    `samples` are pairs: as clients send them, and as the model reads them.
    """
    scored = {name: _Difference() for name in model.spec.tower.outputs}
    total, done = sum(part.batch_size for part, _ in samples), 0
    for part, read in samples:
        for sent, batch in zip(batches(part), batches(read), strict=True):
            _add_scores(scored, trained(sent), model.scores(batch))
            done += sent.batch_size
            progress("comparing with the trained module", done, total)
    for name, gap in scored.items():
        if not gap.share <= bound:
            raise gap.refusal(
                f"model {model.spec.name!r}: output {name!r} differs from the trained module's",
                bound,
                ": the spec, the weights or the tower were changed since the import, or the module "
                "gives other scores at each call, or reads the lengths of bags",
            )
    return max(gap.share for gap in scored.values())


def _feature_columns(model: Fp32Model, batch: ModelInput) -> list[Tensor]:
    found: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    start = 0
    for feature, dim in model.columns(batch):
        found[feature.name, feature.table.name].append(torch.arange(start, start + dim))
        start += dim
    return [torch.cat(found[f.name, f.table.name]) for f in model.spec.table_features]


def _against_recorded(
    model: Fp32Model, calibration: CalibrationSamples, bound: float, progress: Progress
) -> float:
    scored = {name: _Difference() for name in calibration.references}
    samples, done = calibration.model_input, 0
    for batch in batches(samples):
        [read] = model.pooled(batch, [TRAINED])
        recorded = {
            name: scores[done : done + batch.batch_size]
            for name, scores in calibration.references.items()
        }
        _add_scores(scored, recorded, model.score(batch, read))
        done += batch.batch_size
        progress("comparing with recorded scores", done, samples.batch_size)
    for name, found in scored.items():
        if not found.share <= bound:
            raise found.refusal(
                f"model {model.spec.name!r}: output {name!r} differs from the trained model's "
                f"recorded scores (reference.{name})",
                bound,
                ": the spec or the weights are not those of the model that was recorded"
                + likely_mistake(model, samples, name, calibration.references[name], bound),
            )
    return max(found.share for found in scored.values())


def _add_scores(
    scored: Mapping[str, _Difference],
    expected: Mapping[str, NDArray[np.float32]],
    read: Mapping[str, NDArray[np.float32]],
) -> None:
    for name, found in scored.items():
        if name not in expected or expected[name].shape != read[name].shape:
            came = list(expected[name].shape) if name in expected else "none"
            raise WeightsError(
                f"output {name!r}: the tower gives {list(read[name].shape)}, the trained model "
                f"{came}"
            )
        found.add(torch.from_numpy(expected[name]), torch.from_numpy(read[name]))


def _check_shape(spec: ModelSpec, place: int, found: Tensor, own: Tensor) -> None:
    if found.shape != own.shape:
        feature = spec.table_features[place]
        raise WeightsError(
            f"feature {feature.name!r}, table {feature.table.name!r}: its module returns "
            f"{list(found.shape)}, expected {list(own.shape)}"
        )
