"""Columns of samples beside a model's inputs: labels, and the trained model's own scores."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sharded_infer.specs.model_spec import ModelSpec

LABEL = "label"  # what happened: 0 or 1
REFERENCE = "reference"  # the trained model's own scores


@dataclass(frozen=True, slots=True)
class OutcomeColumns:
    """The columns of labels and of the trained model's reference scores, by output."""

    labels: Mapping[str, str]
    references: Mapping[str, str]


def is_outcome(spec: ModelSpec, name: str, label_columns: Mapping[str, str] | None = None) -> bool:
    """True if a column holds labels or reference scores, and is not an input.

    `label_columns` are as in `outcome_columns`.
    """
    if name in spec.dense.inputs or name in spec.sparse_inputs:
        return False
    return name in outcome_names(spec, label_columns)


def outcome_columns(
    spec: ModelSpec,
    names: Collection[str],
    label_columns: Mapping[str, str] | None = None,
) -> OutcomeColumns:
    """Find labels and reference scores among the columns of samples.

    An output's labels are in its column of `label_columns` (None: those of the spec's gate), else
    in `label.<output>`, else in `label`. Its reference scores are in `reference.<output>`; for a
    model with one output, also in `reference`.
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
    """Possible column names of labels and reference scores."""
    outputs = spec.tower.outputs
    own = spec.gate.label_columns if label_columns is None else label_columns
    names = {LABEL, *own.values()}
    names |= {f"{kind}.{output}" for kind in (LABEL, REFERENCE) for output in outputs}
    return names | {REFERENCE} if len(outputs) == 1 else names
