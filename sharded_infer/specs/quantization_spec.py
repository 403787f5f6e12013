"""A spec's quantization: formats, budgets, and the gate."""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from kernels.row_format import RowFormat
from sharded_infer.byte_sizes import parse_size
from sharded_infer.errors import InputError
from sharded_infer.specs.spec_errors import spec_errors

_STRICT = ConfigDict(extra="forbid")


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class QuantizationSpec:
    """Storage of tables without their own format.

    Attributes:
        format: their row format, if no override matches and there is no budget.
        overrides: formats by table name or glob, at most 1,000; the first match counts.
        memory_budget: choose formats with the least expected loss such that all tables' rows fit
            these bytes, such as `40GB`.
        error_budget: choose formats with the fewest bytes such that the expected loss is at most
            this share of the embeddings' power (`quant/format_losses.py`).
        clip: search each int4 and int2 row's range for the least error, instead of taking its
            minimum and maximum.
        nonfinite: `refuse` rows that hold NaN or infinity, or store `zero`.
        ignore: names or globs of unused tables in the checkpoint.
    """

    format: RowFormat = RowFormat.INT8
    overrides: Annotated[dict[str, RowFormat], Field(max_length=1000)] = field(default_factory=dict)
    memory_budget: str | None = None
    error_budget: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    formats: Annotated[tuple[RowFormat, ...], Field(min_length=1)] = (
        # Formats of FBGEMM's kernel; bf16 and fp8 are neither smaller nor more exact than these.
        RowFormat.INT2,
        RowFormat.INT4,
        RowFormat.INT8,
        RowFormat.FP16,
        RowFormat.FP32,
    )
    clip: bool = True
    nonfinite: Literal["refuse", "zero"] = "refuse"
    ignore: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_budget(self) -> "QuantizationSpec":
        if self.memory_budget is not None and self.error_budget is not None:
            raise ValueError("memory_budget and error_budget exclude each other")
        if self.memory_budget is not None:
            try:
                parse_size(self.memory_budget, "memory_budget")
            except InputError as error:
                raise ValueError(str(error)) from error
        return self

    @property
    def has_budget(self) -> bool:
        """True if a budget chooses formats."""
        return self.memory_budget is not None or self.error_budget is not None


# JSON, and so a manifest, has no infinity.
_Bound = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Drop = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class OutputGate:
    """One output's own bounds.

    Attributes:
        max_score_diff: as `GateSpec.max_score_diff`; None takes that, unless `max_relative_diff` is
            set, which then applies alone.
        max_relative_diff: largest allowed difference, as a share of the root mean square of the
            fp32 model's scores of the output: for logits and other scores without a unit.
        label: the column of samples with the output's labels; None: `label.<output>`, else `label`.
        max_auc_drop: as `GateSpec.max_auc_drop`; requires the output's labels.
    """

    max_score_diff: _Bound | None = None
    max_relative_diff: _Bound | None = None
    label: Annotated[str, Field(min_length=1)] | None = None
    max_auc_drop: _Drop | None = None


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class GateSpec:
    """The bounds that a version must keep to be published.

    Attributes:
        max_score_diff: largest allowed difference between a served score and the fp32 model's, on
            the golden requests and the calibration samples, in the score's unit.
        max_auc_drop: largest allowed loss of AUC on the calibration samples, of every output with
            labels there, at least one. None allows any.
        max_import_diff: largest allowed difference between the trained model's numbers and the
            imported fp32 model's, as a share of the largest number; None allows 1e-4.
        outputs: other bounds by output.
    """

    max_score_diff: _Bound = 0.05
    max_auc_drop: _Drop | None = None
    max_import_diff: _Bound | None = None
    outputs: dict[str, OutputGate] | None = None

    def of(self, output: str) -> OutputGate:
        """The bounds of an output: its own, else those of all outputs."""
        own = (self.outputs or {}).get(output, OutputGate())
        absolute = own.max_score_diff
        if absolute is None and own.max_relative_diff is None:
            absolute = self.max_score_diff
        drop = self.max_auc_drop if own.max_auc_drop is None else own.max_auc_drop
        return OutputGate(absolute, own.max_relative_diff, own.label, drop)

    def key(self, output: str, bound: str) -> str:
        """The spec's key of an output's bound, such as `gate.max_score_diff`."""
        own = (self.outputs or {}).get(output, OutputGate())
        return f"gate.{bound}" if getattr(own, bound) is None else f"gate.outputs.{output}.{bound}"

    @property
    def label_columns(self) -> dict[str, str]:
        """The configured label column of each output."""
        named = (self.outputs or {}).items()
        return {output: gate.label for output, gate in named if gate.label is not None}
