"""The effect of formats on the scores of calibration samples."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.bags import Bags
from kernels.row_format import RowFormat
from kernels.wording import did_you_mean
from quant.report import MixReport, OutputReport
from sharded_infer.errors import InputError
from sharded_infer.inputs.finite_check import FiniteCheck
from sharded_infer.inputs.id_policy import IdPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.progress import Progress, no_progress
from sharded_infer.quality.auc import auc
from sharded_infer.quality.finite_scores import refuse_nonfinite
from sharded_infer.quality.fp32_model import TRAINED, Fp32Model, Mix
from sharded_infer.quality.score_difference import score_differences
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.tensors import tensor_of

Scores = Mapping[str, NDArray[np.float32]]
_BATCH = 256  # samples scored together: what is held of them stays small beside any bound
_COMPARED = (RowFormat.FP16, RowFormat.INT8, RowFormat.INT4, RowFormat.INT2)


@dataclass(frozen=True, slots=True)
class CalibrationSamples:
    """Samples for measurements.

    Attributes:
        model_input: one jagged batch of all features.
        labels: by output, fp32 `[B]`, 0 or 1, NaN where unknown.
        references: the trained model's own scores by output, fp32 `[B]` or `[B, K]`.
    """

    model_input: ModelInput
    labels: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    references: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse, with InputError, empty samples, or labels or references of another number."""
        samples = self.model_input.batch_size
        if not samples:
            raise InputError("calibration: expected at least one sample, got none")
        for output, labels in self.labels.items():
            if labels.shape != (samples,):
                raise InputError(
                    f"labels of {output!r}: expected [{samples}], got {list(labels.shape)}"
                )
            strange = ~(np.isnan(labels) | np.isin(labels, (0.0, 1.0)))
            if strange.any():
                sample = int(np.flatnonzero(strange)[0])
                raise InputError(
                    f"sample {sample}: its label of {output!r} is {labels[sample]:g}, "
                    "expected 0 or 1"
                )
        for output, scores in self.references.items():
            if scores.ndim not in (1, 2) or len(scores) != samples:
                raise InputError(
                    f"reference scores of {output!r}: expected [{samples}] or [{samples}, K], "
                    f"got {list(scores.shape)}"
                )
            known = np.isfinite(scores.reshape(samples, -1)).all(axis=1)
            if not known.all():
                sample = int(np.flatnonzero(~known)[0])
                raise InputError(
                    f"sample {sample}: its reference score of {output!r} is "
                    f"{scores[sample].tolist()!s:.80}, expected finite numbers"
                )

    @property
    def labelled(self) -> int:
        """Samples with a label, of any output."""
        if not self.labels:
            return 0
        return int((~np.isnan(np.stack(list(self.labels.values())))).any(axis=0).sum())


def check_samples(spec: ModelSpec, samples: CalibrationSamples) -> None:
    """Refuse samples that cannot be scored, before the long work.

    Raises:
        InputError: they are not one batch of all features, or labels or references are of an
            unknown output; names the output.
        RequestError: an id is out of range for a table with policy `error`, or a dense number or a
            weight is not finite; names the sample or the feature.
    """
    given = samples.model_input
    batch = given.groups[0]
    if len(given.groups) != 1 or batch.batch_size != given.batch_size:
        raise InputError("calibration samples: expected one jagged batch of all features")
    for output in (*samples.labels, *samples.references):
        if output not in spec.tower.outputs:
            raise InputError(
                f"calibration samples: {output!r} is not one of the outputs "
                f"{', '.join(spec.tower.outputs)}{did_you_mean(output, spec.tower.outputs)}"
            )
    # Raw ids are checked when mapped.
    if not (spec.raw_tables or given.ids_checked):
        IdPolicy(spec.input_features).apply(Bags(tensor_of(batch.values), tensor_of(batch.lengths)))
    FiniteCheck(replace(spec, serving=replace(spec.serving, non_finite="refuse"))).check(given)


def measure_quality(
    model: Fp32Model,
    samples: CalibrationSamples,
    mixes: Mapping[str, Mix],
    served: tuple[str, Callable[[ModelInput], Scores]] | None = None,
    progress: Progress = no_progress,
) -> list[MixReport]:
    """Score samples with several mixes of formats, and compare them with the fp32 model.

    The tower runs in fp32. `served` is a name, and a function that scores a batch as a server
    would. `progress` is called with the samples scored. Reports are `fp32`, `served`, then the
    mixes in order; differences are infinite if a format cannot hold a row. Raises WeightsError or
    TowerError with the cause if the trained model's own scores are not finite.
    """
    names = list(mixes)
    gathered: dict[str, list[Scores]] = {name: [] for name in ("fp32", *names)}
    if served is not None:
        gathered[served[0]] = []
    done = 0
    for batch in batches(samples.model_input):
        pooled = model.pooled(batch, [TRAINED, *mixes.values()])
        for name, embeddings in zip(("fp32", *names), pooled, strict=True):
            if name == "fp32":
                scores = model.score(batch, embeddings)
                refuse_nonfinite(model, batch, embeddings, scores)
            elif torch.isfinite(embeddings).all():
                scores = model.score(batch, embeddings)
            else:
                # A tower may hide NaN, as a ranking does.
                trained = gathered["fp32"][-1]
                scores = {output: np.full_like(array, np.nan) for output, array in trained.items()}
            gathered[name].append(scores)
        if served is not None:
            gathered[served[0]].append(served[1](batch))
        done += batch.batch_size
        progress("scoring calibration", done, samples.model_input.batch_size)
    formats: dict[str, Mix | None] = {"fp32": TRAINED}
    if served is not None:
        formats[served[0]] = None
    formats |= mixes
    reference = _joined(gathered["fp32"])
    sizes = {name: table_bytes(model.spec, mix) for name, mix in formats.items()}
    return [
        _mix_report(name, sizes[name], reference, _joined(gathered[name]), samples)
        for name in formats
    ]


def compared_mixes(spec: ModelSpec) -> dict[str, Mix]:
    """Mixes with one format for all tables, by name, for comparison."""
    return {
        str(f): Mix({table.name: f for table in spec.tables}, spec.quantization.clip)
        for f in _COMPARED
    }


def table_bytes(spec: ModelSpec, mix: Mix | None) -> int:
    """Bytes of all tables' rows in a mix; None takes the formats of the spec."""
    total = 0
    for table in spec.tables:
        if mix is None:
            row_format = spec.row_format(table)
        else:
            row_format = mix.formats.get(table.name, RowFormat.FP32)
        total += table.rows * row_format.row_bytes(table.dim)
    return total


def batches(model_input: ModelInput, limit: int | None = None) -> Iterator[ModelInput]:
    """Yield parts of one jagged batch of all features, of `limit` samples in all (None: all)."""
    samples = min(model_input.batch_size, limit or model_input.batch_size)
    for start in range(0, samples, _BATCH):
        yield model_input.samples(start, min(start + _BATCH, samples))


def _joined(parts: list[Scores]) -> dict[str, NDArray[np.float32]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def absolute_differences(reference: Scores, scores: Scores) -> NDArray[np.float64]:
    """Absolute differences of all outputs, fp64 `[N]`."""
    parts = [np.abs(reference[n].astype(np.float64) - scores[n]).ravel() for n in reference]
    return np.concatenate(parts)


def _mix_report(
    name: str, size: int, reference: Scores, scores: Scores, samples: CalibrationSamples
) -> MixReport:
    differences = absolute_differences(reference, scores)
    found = score_differences(reference, scores)
    outputs = []
    for output in reference:
        of_output = absolute_differences({output: reference[output]}, scores)
        area, loss = None, None
        if output in samples.labels:
            area, loss = _against_labels(scores[output], samples.labels[output])
        outputs.append(
            OutputReport(
                name=output,
                mean_score_diff=float(of_output.mean()),
                p99_score_diff=float(np.percentile(of_output, 99)),
                # NaN is not a small difference.
                max_score_diff=found[output].largest,
                magnitude=found[output].magnitude,
                auc=area,
                log_loss=loss,
            )
        )
    labelled = [output for output in outputs if output.name in samples.labels]
    return MixReport(
        name=name,
        table_bytes=size,
        mean_score_diff=float(differences.mean()),
        p99_score_diff=float(np.percentile(differences, 99)),
        max_score_diff=max(output.max_score_diff for output in outputs),
        auc=labelled[0].auc if len(labelled) == 1 else None,
        log_loss=labelled[0].log_loss if len(labelled) == 1 else None,
        outputs=tuple(outputs),
    )


def _against_labels(
    scores: NDArray[np.float32], labels: NDArray[np.float32]
) -> tuple[float | None, float | None]:
    """AUC, and the mean negative log likelihood; None where the labels do not allow it."""
    if scores.ndim != 1:
        return None, None
    known = ~np.isnan(labels)
    truth, values = labels[known].astype(np.float64), scores[known].astype(np.float64)
    if not truth.size or not np.isfinite(values).all():
        return None, None
    area = None if truth.min() == truth.max() else auc(truth, values)
    if values.min() < 0 or values.max() > 1:
        return area, None
    # A wrong score of exactly 0 or 1 would have infinite loss: clipped, as in scikit-learn.
    epsilon = float(np.finfo(np.float32).eps)
    likely = np.where(truth == 1, values, 1 - values).clip(epsilon, 1)
    loss = -float(np.log(likely).mean())
    return area, loss if math.isfinite(loss) else None
