"""The gate: score differences on calibration samples that allow a version's publication."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quant.report import CalibrationReport, TableContribution
from sharded_infer.artifacts.manifest import GoldenRecord, OutputDifference
from sharded_infer.errors import GateError, SpecError
from sharded_infer.quality.score_difference import ScoreDifference
from sharded_infer.specs.quantization_spec import GateSpec

_NAMED_TABLES = 3  # in an error


def check_labels(gate: GateSpec, labels: Mapping[str, NDArray[np.float32]]) -> None:
    """Refuse bounds on AUC without labels (NaN: unknown) with SpecError."""
    labelled = {output for output, known in labels.items() if not np.isnan(known).all()}
    if gate.max_auc_drop is not None and not labelled:
        raise SpecError("gate.max_auc_drop: needs calibration samples with labels, none were given")
    for output, own in (gate.outputs or {}).items():
        if own.max_auc_drop is not None and output not in labelled:
            raise SpecError(
                f"gate.outputs.{output}.max_auc_drop: needs calibration samples with labels of "
                f"{output!r}, none were given"
            )


def check_differences(
    gate: GateSpec,
    found: Mapping[str, ScoreDifference],
    what: str,
    rest: str = "",
    traits: Callable[[NDArray[np.bool_]], str] = lambda _: "",
) -> None:
    """Refuse scores that differ from the fp32 model's by more than the spec allows.

    Args:
        what: the scores' source, such as `model 'm': a golden request`.
        traits: says what samples, chosen by a mask `[B]`, have in common.

    Raises GateError with the output, the difference and the bound.
    """
    for output, difference in found.items():
        bounds = gate.of(output)
        message = (
            f"{what}'s score {output!r} differs from the fp32 model's by {difference.largest:.6g}"
        )
        if bounds.max_score_diff is not None and not difference.largest <= bounds.max_score_diff:
            raise GateError(
                f"{message}, the spec allows {bounds.max_score_diff:g} "
                f"({gate.key(output, 'max_score_diff')})"
                f"{difference.worst(bounds.max_score_diff, traits)}{rest}"
            )
        allowed = bounds.max_relative_diff
        if allowed is not None and not difference.relative <= allowed:
            raise GateError(
                f"{message}, {difference.relative:.6g} of its scores' root mean square "
                f"({difference.magnitude:.6g}), the spec allows {allowed:g} "
                f"({gate.key(output, 'max_relative_diff')})"
                f"{difference.worst(allowed * difference.magnitude, traits)}{rest}"
            )


def check_quality(gate: GateSpec, report: CalibrationReport, name: str) -> None:
    """Refuse a version by the mix `published`; GateError names the main contributing tables."""
    fp32, published = report.mixes[:2]
    rest = blame(report.contributions)
    found = {o.name: ScoreDifference(o.max_score_diff, o.magnitude) for o in published.outputs}
    check_differences(gate, found, f"model {name!r}: a calibration sample", rest)
    labelled = [output.name for output in fp32.outputs if output.auc is not None]
    for before, after in zip(fp32.outputs, published.outputs, strict=True):
        allowed, key = gate.of(after.name).max_auc_drop, gate.key(after.name, "max_auc_drop")
        is_own = key != "gate.max_auc_drop"
        if allowed is None or (labelled and not is_own and before.auc is None):
            continue
        if before.auc is None or after.auc is None:
            raise GateError(
                f"model {name!r}: the spec allows a loss of AUC of {allowed:g} ({key}), which "
                f"needs calibration samples with labels of both classes for {after.name!r}"
            )
        if not before.auc - after.auc <= allowed:
            raise GateError(
                f"model {name!r}: the AUC of {after.name!r} falls by {before.auc - after.auc:.6g}, "
                f"from {before.auc:.6g} to {after.auc:.6g}, the spec allows {allowed:g} "
                f"({key}){rest}"
            )


def golden_record(
    record: GoldenRecord, gate: GateSpec, ways: Sequence[Mapping[str, ScoreDifference]]
) -> GoldenRecord:
    """The record of golden requests with their differences, the largest over all compute modes."""
    worst = {
        name: max((way[name] for way in ways), key=lambda found: found.largest) for name in ways[0]
    }
    largest = max(found.largest for found in worst.values())
    if len(worst) == 1 and not gate.outputs:
        return replace(record, max_score_diff=largest)
    outputs = tuple(
        OutputDifference(
            name,
            found.largest,
            found.relative if math.isfinite(found.relative) else None,
            gate.of(name).max_score_diff,
            gate.of(name).max_relative_diff,
        )
        for name, found in worst.items()
    )
    return replace(record, max_score_diff=largest, outputs=outputs)


def blame(contributions: tuple[TableContribution, ...]) -> str:
    """The end of a sentence that names the tables that contribute most."""
    if not contributions:
        return ""
    named = ", ".join(
        f"{c.table} (mean {c.mean_score_diff:.2g}, largest {c.max_score_diff:.2g})"
        for c in contributions[:_NAMED_TABLES]
    )
    return f"; the tables that contribute most, each by itself: {named}"
