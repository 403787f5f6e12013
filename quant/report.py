"""What quantization did: the keys of `report.json`.

Of each table its sizes, its errors and why it has its format; of the model the budget, and what
calibration samples said.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kernels.row_format import RowFormat
from kernels.wording import counted


@dataclass(frozen=True, slots=True)
class ErrorHistogram:
    """How many rows have which error, relative to the row: sqrt(sum e^2 / sum x^2).

    Attributes:
        edges: ascending; bin i holds `edges[i] <= error < edges[i + 1]`. The first bin also holds
            anything below, 0 above all, the last anything above.
        counts: rows of each bin; one fewer than edges.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table before and after.

    Attributes:
        name: the table.
        row_format: how it is stored.
        rows: number of rows.
        dim: elements of a row.
        fp32_bytes: size of its rows as fp32.
        stored_bytes: size of its rows as stored.
        mean_squared_error: over all elements, in the weights' unit squared.
        minmax_mean_squared_error: the same had each row's minimum and maximum been its range; None
            where ranges are not searched.
        max_abs_error: over all elements, in the weights' unit.
        mean_square: of the fp32 elements; what the error compares with.
        zeroed: elements that were NaN or infinite, and stored as 0 as told.
        row_errors: of its rows.
        reason: why it has this format, in a sentence.
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
    """What a budget asked for, and what came of it.

    Attributes:
        kind: `memory` (bytes of all tables' rows) or `error` (relative loss, see
            `quant/budget.py`).
        limit: what was allowed, in that unit.
        bytes: of all tables' rows as chosen.
        loss: expected, of the formats chosen.
        least_bytes: of the smallest choice there is.
        least_loss: of the most exact choice there is.
        sampled_rows: rows that the losses were measured on, of all tables.
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
    """What one choice of formats does to one output's scores of the calibration samples.

    Attributes:
        name: of the output.
        mean_score_diff: mean absolute difference from the fp32 model's scores, in their unit.
        p99_score_diff: 99th percentile of it.
        max_score_diff: the largest.
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
        """The largest difference by the magnitude; None where all scores are 0."""
        return self.max_score_diff / self.magnitude if self.magnitude else None


@dataclass(frozen=True, slots=True)
class MixReport:
    """What one choice of formats does to the scores of the calibration samples.

    Attributes:
        name: `published` is the version itself as it is served; `fp32` the trained model; others
            are formats given to every table.
        table_bytes: of all tables' rows.
        mean_score_diff: mean absolute difference from the fp32 model's scores, in their unit.
        p99_score_diff: 99th percentile of it.
        max_score_diff: the largest.
        auc: area under the ROC curve of the only output with labels; None where there are several,
            or none, or no labels of both classes.
        log_loss: mean negative log likelihood of the same, nats; None likewise, or where scores
            are not probabilities.
        outputs: the same by output, in the model's order; a file says them where there are several.
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
    """What storing one table alone as published, all others in fp32, does to the scores.

    Attributes:
        table: its name.
        mean_score_diff: mean absolute difference from the fp32 model's scores.
        max_score_diff: the largest.
    """

    table: str
    mean_score_diff: float
    max_score_diff: float


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """What the calibration samples said.

    Attributes:
        samples: how many.
        labelled: how many of them with a label.
        mixes: `fp32` first, `published` second, then other mixes.
        contributions: by table, the largest mean difference first.
    """

    samples: int
    labelled: int
    mixes: tuple[MixReport, ...]
    contributions: tuple[TableContribution, ...]

    @property
    def by_output(self) -> list[tuple[OutputReport, OutputReport]]:
        """Each output as published and in fp32; empty where the report names no outputs."""
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
    """How far what was read of a model, in fp32, is from the model as it was trained.

    Attributes:
        compared_with: what the trained model's numbers came from.
        samples: how many were compared.
        max_embedding_diff: of pooled embeddings, the largest difference, as a share of the largest
            embedding of the same feature; None where only scores were known.
        max_score_diff: likewise of scores, by output.
        allowed: the largest share that was allowed.
    """

    compared_with: str
    samples: int
    max_embedding_diff: float | None
    max_score_diff: float
    allowed: float


def import_text(report: ImportReport | None) -> str:
    """One line: what an import was compared with, or that it was not, and how it can be."""
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
    """All of it.

    Attributes:
        model: the model's name.
        encoder: what encoded the rows, such as `native avx512` or `torch`.
        tables: in the spec's order.
        budget: None where no budget was given.
        calibration: None where no samples were given.
        imported: None where the import was not compared with the trained model.
    """

    model: str
    encoder: str
    tables: tuple[TableReport, ...]
    budget: BudgetReport | None = None
    calibration: CalibrationReport | None = None
    imported: ImportReport | None = None

    def fields(self) -> dict[str, object]:
        """As plain values, for JSON."""
        fields = asdict(self)
        # As reports were written before there were these fields.
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
