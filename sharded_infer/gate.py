"""The gate: whether what calibration samples said lets a version be published."""

from quant.report import CalibrationReport, TableContribution
from sharded_infer.errors import GateError
from sharded_infer.quantization_spec import GateSpec

_NAMED_TABLES = 3  # in an error


def check_quality(gate: GateSpec, report: CalibrationReport, name: str) -> None:
    """Refuses a version whose scores on the calibration samples differ too much.

    Args:
        gate: what is allowed.
        report: what was measured; `published` is the mix that counts.
        name: the model's name.

    Raises:
        GateError: by how much it fails, and which tables contribute most.
    """
    fp32, published = report.mixes[:2]
    if not published.max_score_diff <= gate.max_score_diff:
        raise GateError(
            f"model {name!r}: a calibration sample's score differs from the fp32 model's by "
            f"{published.max_score_diff:.6g}, the spec allows {gate.max_score_diff:g} "
            f"(gate.max_score_diff){blame(report.contributions)}"
        )
    if gate.max_auc_drop is None:
        return
    if fp32.auc is None or published.auc is None:
        raise GateError(
            f"model {name!r}: the spec allows a loss of AUC of {gate.max_auc_drop:g} "
            "(gate.max_auc_drop), which needs calibration samples with labels of both classes"
        )
    if not fp32.auc - published.auc <= gate.max_auc_drop:
        raise GateError(
            f"model {name!r}: the AUC falls by {fp32.auc - published.auc:.6g}, from "
            f"{fp32.auc:.6g} to {published.auc:.6g}, the spec allows {gate.max_auc_drop:g} "
            f"(gate.max_auc_drop){blame(report.contributions)}"
        )


def blame(contributions: tuple[TableContribution, ...]) -> str:
    """The end of a sentence that names the tables that contribute most."""
    if not contributions:
        return ""
    named = ", ".join(
        f"{c.table} (mean {c.mean_score_diff:.2g}, largest {c.max_score_diff:.2g})"
        for c in contributions[:_NAMED_TABLES]
    )
    return f"; the tables that contribute most, each by itself: {named}"
