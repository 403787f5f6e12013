"""Columns of samples beside a model's inputs: labels, and the trained model's own scores."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sharded_infer.specs.model_spec import ModelSpec

LABEL = "label"  # what happened: 0 or 1
REFERENCE = "reference"  # the trained model's own scores


@dataclass(frozen=True, slots=True)
class OutcomeColumns:
    """Which columns of samples are labels and reference scores.

    Attributes:
        labels: the column by output.
        references: the same for the trained model's scores.
    """

    labels: Mapping[str, str]
    references: Mapping[str, str]


def is_outcome(spec: ModelSpec, name: str, label_columns: Mapping[str, str] | None = None) -> bool:
    """Whether a column holds labels or reference scores.

    Args:
        spec: a column with the name of an input is that input.
        label_columns: the label's column by output, if it has a name of its own; None takes those
            of the spec's gate.
    """
    if name in spec.dense.inputs or name in spec.sparse_inputs:
        return False
    return name in outcome_names(spec, label_columns)


def outcome_columns(
    spec: ModelSpec,
    names: Collection[str],
    label_columns: Mapping[str, str] | None = None,
) -> OutcomeColumns:
    """Finds labels and reference scores among the columns of samples.

    An output's labels are in the column that `label_columns` gives it, else in `label.<output>`,
    else in `label`. Its reference scores are in `reference.<output>`; of a model with one output,
    also in `reference`.

    Args:
        label_columns: the label's column by output, if it has a name of its own; None takes those
            of the spec's gate.
    """
    own = spec.gate.label_columns if label_columns is None else label_columns
    known = {name for name in names if is_outcome(spec, name, own)}
    labels, references = {}, {}
    for output in spec.tower.outputs:
        candidates = (own[output],) if output in own else (f"{LABEL}.{output}", LABEL)
        for column in candidates:
            if column in known:
                labels[output] = column
                break
        for column in (f"{REFERENCE}.{output}", REFERENCE):
            if column in known:
                references[output] = column
                break
    return OutcomeColumns(labels, references)


def outcome_names(spec: ModelSpec, label_columns: Mapping[str, str] | None = None) -> set[str]:
    """Names that columns of labels and reference scores can have."""
    outputs = spec.tower.outputs
    own = spec.gate.label_columns if label_columns is None else label_columns
    names = {LABEL, *own.values()}
    names |= {f"{kind}.{output}" for kind in (LABEL, REFERENCE) for output in outputs}
    return names | {REFERENCE} if len(outputs) == 1 else names
