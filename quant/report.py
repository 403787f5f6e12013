"""Report of a quantization; the fields are the keys of `report.json`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kernels.row_format import RowFormat
from kernels.wording import counted


@dataclass(frozen=True, slots=True)
class ErrorHistogram:
    """Numbers of rows by relative error: sqrt(sum e^2 / sum x^2).

    Bin i holds `edges[i] <= error < edges[i + 1]`, edges ascending. The first bin also holds
    smaller errors, mainly 0; the last also larger ones.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableReport:
    """A table before and after quantization.

    Attributes:
        mean_squared_error: over all elements, in the weights' unit squared.
        minmax_mean_squared_error: the same with each row's minimum and maximum as its range; None
            if ranges are not searched.
        max_abs_error: over all elements, in the weights' unit.
        mean_square: of the fp32 elements, for comparison.
        zeroed: NaN and infinite elements that were stored as 0.
    """

    name: str
    row_format: RowFormat
    rows: int
    dim: int
    fp32_bytes: int
    stored_bytes: int
    mean_squared_error: float
    minmax_mean_squared_error: float | None
    max_abs_error: float
    mean_square: float
    zeroed: int
    row_errors: ErrorHistogram
    reason: str


@dataclass(frozen=True, slots=True)
class BudgetReport:
    """A budget and the resulting choice.

    Attributes:
        kind: `memory` (bytes of all tables' rows) or `error` (relative loss, see
            `quant/budget.py`).
        limit: the bound, in that unit.
        bytes, loss: of all tables' rows in the chosen formats, expected.
        least_bytes, least_loss: of the smallest and of the most exact choice.
        sampled_rows: rows of all tables on which the losses were measured.
    """

    kind: str
    limit: float
    bytes: int
    loss: float
    least_bytes: int
    least_loss: float
    sampled_rows: int


@dataclass(frozen=True, slots=True)
class OutputReport:
    """Effect of a choice of formats on one output's scores of the calibration samples.

    Attributes:
        mean_score_diff: mean absolute difference from the fp32 model's scores, in their unit.
        p99_score_diff: 99th percentile of it.
        magnitude: root mean square of the fp32 model's scores.
        auc: area under the ROC curve; None without labels of both classes.
        log_loss: mean negative log likelihood, nats; None without labels, or where scores are not
            probabilities.
    """

    name: str
    mean_score_diff: float
    p99_score_diff: float
    max_score_diff: float
    magnitude: float
    auc: float | None
    log_loss: float | None

    @property
    def relative_diff(self) -> float | None:
        """The largest difference over the magnitude; None if all scores are 0."""
        return self.max_score_diff / self.magnitude if self.magnitude else None


@dataclass(frozen=True, slots=True)
class MixReport:
    """Effect of a choice of formats on the scores of the calibration samples.

    Differences, `auc` and `log_loss` are as in `OutputReport`; the last two are of the only output
    with labels, else None.

    Attributes:
        name: `published` is the served version, `fp32` the trained model.
        table_bytes: of all tables' rows.
        outputs: the same by output, in the model's order; written only if there are several.
    """

    name: str
    table_bytes: int
    mean_score_diff: float
    p99_score_diff: float
    max_score_diff: float
    auc: float | None
    log_loss: float | None
    outputs: tuple[OutputReport, ...] = ()


@dataclass(frozen=True, slots=True)
class TableContribution:
    """Effect on the scores of storing one table as published, all others in fp32."""

    table: str
    mean_score_diff: float
    max_score_diff: float


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """Results of calibration samples: mixes `fp32`, `published`, others; contributions descend."""

    samples: int
    labelled: int
    mixes: tuple[MixReport, ...]
    contributions: tuple[TableContribution, ...]

    @property
    def by_output(self) -> list[tuple[OutputReport, OutputReport]]:
        """Each output as published and in fp32; empty if the report names no outputs."""
        named = {mix.name: mix.outputs for mix in self.mixes}
        trained = {output.name: output for output in named.get("fp32", ())}
        published = named.get("published", ())
        return [(found, trained[found.name]) for found in published if found.name in trained]


NOT_COMPARED = (
    "import not compared with the trained model: publish from its modules in memory, or record its "
    "outputs (sharded_infer.record_reference) and give them as calibration samples"
)


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Difference of an imported model, in fp32, from the trained one.

    Attributes:
        compared_with: source of the trained model's numbers.
        max_embedding_diff: largest difference of pooled embeddings, as a share of the feature's
            largest embedding; None if only scores were known.
        max_score_diff: the same of scores, by output.
        allowed: the bound on both.
    """

    compared_with: str
    samples: int
    max_embedding_diff: float | None
    max_score_diff: float
    allowed: float


def import_text(report: ImportReport | None) -> str:
    """One line about the comparison of an import, or how to make one."""
    if report is None:
        return NOT_COMPARED
    embeddings = ""
    if report.max_embedding_diff is not None:
        embeddings = f"embeddings within {report.max_embedding_diff:.2g}, "
    return (
        f"import compared with {report.compared_with} on "
        f"{counted(report.samples, 'sample', ',')}: {embeddings}scores within "
        f"{report.max_score_diff:.2g} of the largest, {report.allowed:g} allowed"
    )


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """The whole report of a quantization; tables are in the spec's order.

    `encoder` is such as `native avx512` or `torch`; `imported` is None without an import check.
    """

    model: str
    encoder: str
    tables: tuple[TableReport, ...]
    budget: BudgetReport | None = None
    calibration: CalibrationReport | None = None
    imported: ImportReport | None = None

    def fields(self) -> dict[str, object]:
        """The report for JSON."""
        fields = asdict(self)
        # As in reports before these fields existed.
        if self.imported is None:
            del fields["imported"]
        if self.calibration is not None:
            for mix in fields["calibration"]["mixes"]:
                if len(mix["outputs"]) < 2:
                    del mix["outputs"]
        return fields


def total_bytes(tables: Sequence[TableReport]) -> tuple[int, int]:
    """Bytes of all tables' rows as fp32, and as stored."""
    return sum(t.fp32_bytes for t in tables), sum(t.stored_bytes for t in tables)
