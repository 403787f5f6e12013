import base64
import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.row_format import RowFormat
from quant.report import (
    BudgetReport,
    CalibrationReport,
    ErrorHistogram,
    MixReport,
    QuantizationReport,
    TableContribution,
    TableReport,
)
from sharded_infer.reports.quantization.page import render_quantization_page
from tests.sharded_infer.reports.parsed_page import ParsedPage, check_drawn

HOSTILE = '</style><script>alert("1")</script>" onload=\'x\' & <rect width="1%">'
EDGES = tuple(10.0 ** (exponent / 4) for exponent in range(-20, 5))
FORMATS = (RowFormat.INT8, RowFormat.INT4, RowFormat.FP16, RowFormat.INT2, RowFormat.FP32)
ERRORS = dict(zip(FORMATS, (4e-3, 6e-2, 2e-4, 0.3, 0.0), strict=True))


def table_report(name: str, row_format: RowFormat, rows: int = 1000, dim: int = 16) -> TableReport:
    error = ERRORS[row_format]
    counts = [0] * (len(EDGES) - 1)
    place = math.floor(4 * math.log10(error)) + 20 if error else 0
    counts[place] = rows
    searched = row_format in {RowFormat.INT4, RowFormat.INT2}
    return TableReport(
        name=name,
        row_format=row_format,
        rows=rows,
        dim=dim,
        fp32_bytes=4 * rows * dim,
        stored_bytes=rows * row_format.row_bytes(dim),
        mean_squared_error=error**2 * 0.01,
        minmax_mean_squared_error=(1.25 * error) ** 2 * 0.01 if searched else None,
        max_abs_error=error,
        mean_square=0.01,
        zeroed=0,
        row_errors=ErrorHistogram(EDGES, tuple(counts)),
        reason="the model's default",
    )


def calibration_of(tables: tuple[TableReport, ...], auc: float | None = 0.8) -> CalibrationReport:
    size = sum(table.fp32_bytes for table in tables)

    def mix(name: str, share: float, diff: float) -> MixReport:
        changed = None if auc is None else auc - diff / 10
        loss = None if auc is None else 0.45 + diff / 10
        return MixReport(name, int(share * size), diff, 4 * diff, 11 * diff, changed, loss)

    mixes = (mix("fp32", 1, 0.0), mix("published", 0.3, 2.1e-4), mix("int4", 0.15, 7e-4))
    contributions = tuple(
        TableContribution(table.name, 1e-4 / number, 1e-3 / number)
        for number, table in enumerate(tables, start=1)
    )
    return CalibrationReport(5000, 4000, mixes, contributions)


def report_of(
    count: int, *, calibrated: bool = True, budget: BudgetReport | None = None
) -> QuantizationReport:
    tables = tuple(
        table_report(f"table_with_quite_a_long_name_{i:04}", FORMATS[i % 5], 100 + 997 * i % 9000)
        for i in range(count)
    )
    calibration = calibration_of(tables) if calibrated else None
    return QuantizationReport("click_model", "native avx512", tables, budget, calibration)


MEMORY = BudgetReport("memory", 2_000_000.0, 1_900_000, 2.5e-3, 1_000_000, 1e-6, 4096)
ERROR = BudgetReport("error", 0.01, 1_900_000, 8.7e-3, 1_000_000, 1e-6, 4096)


@pytest.mark.parametrize("count", [1, 26])
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("budget", [None, MEMORY, ERROR], ids=["none", "memory", "error"])
def test_page_is_well_formed(count: int, calibrated: bool, budget: BudgetReport | None) -> None:
    text = render_quantization_page(report_of(count, calibrated=calibrated, budget=budget))
    page = ParsedPage(text)
    shown = page.text("body").replace(page.text("script"), "")
    assert not re.search(r"\b(nan|inf|None)\b", shown, re.IGNORECASE)
    headings = re.findall("<h2>(.*?)</h2>", text)
    expected = ["Size", "Scores", "Error", "Budget", "Tables"]
    left_out = set() if calibrated else {"Scores"}
    left_out |= {"Budget"} if budget is None else set()
    assert headings == [name for name in expected if name not in left_out]


def test_page_needs_nothing_from_elsewhere_and_allows_its_own_script_alone() -> None:
    text = render_quantization_page(report_of(30, budget=MEMORY))
    page = ParsedPage(text)
    digest = base64.b64encode(hashlib.sha256(page.text("script").encode()).digest()).decode()
    assert page.check_self_contained(text) == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_verdict_says_sizes_score_differences_and_the_change_of_auc() -> None:
    report = report_of(26)
    verdict = ParsedPage(render_quantization_page(report)).text("header", "p")
    before = sum(table.fp32_bytes for table in report.tables)
    after = sum(table.stored_bytes for table in report.tables)
    assert verdict.startswith("26 tables go from ")
    assert f", {before / after:.2f} \N{MULTIPLICATION SIGN} smaller. " in verdict
    assert "Scores of 5,000 calibration samples differ by 0.00021 on average and by 0.0023" in (
        verdict
    )
    assert "; AUC goes from 0.80000 to 0.79998 (\N{MINUS SIGN}0.00002)." in verdict
    assert "Import not compared with the trained model: " in verdict


def test_verdict_without_calibration_says_what_is_not_known() -> None:
    page = ParsedPage(render_quantization_page(report_of(5, calibrated=False)))
    verdict = page.text("header", "p")
    assert "What that does to scores was not measured: no calibration samples" in verdict
    assert "The largest error of a table is 30.0% of its weights" in verdict


def test_every_table_is_listed_with_its_figures_and_its_reason() -> None:
    report = report_of(60)
    text = ParsedPage(render_quantization_page(report)).text("table")
    for table in report.tables:
        assert table.name in text
    listed = render_quantization_page(report).rpartition("<h2>Tables</h2>")[2]
    assert listed.count("the model&#x27;s default") == 60
    row = next(r for r in listed.splitlines() if "name_0001<" in r)
    cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
    assert [re.sub("<[^>]+>", "", cell) for cell in cells] == [
        *("table_with_quite_a_long_name_0001", "1,097", "16", "int4", "70.2 kB", "13.2 kB"),
        *("6.00%", "0.0600", "the model&#x27;s default"),
    ]


def test_most_tables_are_summed_up_where_they_are_too_many_to_draw() -> None:
    text = ParsedPage(render_quantization_page(report_of(200))).text("table")
    assert "and 160 more, together" in text
    assert "and 180 more, each at most" in text
    assert "and 120 more, each at most" in text and "and 40 stored exactly" in text


def test_searched_ranges_are_compared_with_min_max() -> None:
    text = render_quantization_page(report_of(4))
    row = next(line for line in text.splitlines() if "hollow int4" in line)
    assert row.count("<circle") == 2
    assert re.sub("<[^>]+>", "", row).endswith("6.00%7.50%\N{MINUS SIGN}20.0%")
    plain = next(line for line in text.splitlines() if '<circle class="int8"' in line)
    assert plain.count("<circle") == 1


def test_zeroed_numbers_are_counted_only_where_there_are_any() -> None:
    report = report_of(3)
    assert "Stored as 0" not in render_quantization_page(report)
    zeroed = replace(report.tables[0], zeroed=1234)
    text = render_quantization_page(replace(report, tables=(zeroed, *report.tables[1:])))
    assert "<dt>Stored as 0</dt><dd>1,234</dd>" in text
    assert '<td class="n" data-v="1234">1,234</td>' in text


@pytest.mark.parametrize(("budget", "used"), [(MEMORY, "95.0%"), (ERROR, "87.0%")])
def test_budget_says_limit_used_and_least(budget: BudgetReport, used: str) -> None:
    text = render_quantization_page(report_of(2, budget=budget))
    section = text[text.index("<h2>Budget</h2>") : text.index("<h2>Tables</h2>")]
    section = re.sub("<[^>]+>", "", section)
    assert used in section and "4,096 rows" in section and "1.90 MB" in section
    assert "Limit" in section and "Least possible" in section


def test_hostile_names_stay_text() -> None:
    names = [HOSTILE, "bell\a and \u202e turned", "x" * 5000, "\u202b", "جدول", " "]
    tables = tuple(
        replace(table_report(name, FORMATS[i % 4]), reason=HOSTILE * (1 + 300 * (i == 1)))
        for i, name in enumerate(names)
    )
    report = QuantizationReport(HOSTILE, HOSTILE, tables, MEMORY, calibration_of(tables))
    assert report.calibration is not None
    mixes = (*report.calibration.mixes, replace(report.calibration.mixes[2], name=HOSTILE))
    report = replace(report, calibration=replace(report.calibration, mixes=mixes))
    text = render_quantization_page(report)
    page = ParsedPage(text)
    assert text.count("<script") == 1 and "onload='x'" not in text
    assert "\a" not in text and "\u202e" not in text and "x" * 200 not in text
    assert page.text("title") == f"Quantization of {HOSTILE}"
    assert HOSTILE in page.text("th")
    assert len(text) < 150_000
    text.encode()


def test_tables_are_sorted_and_found_by_the_script_alone() -> None:
    assert 'class="find"' not in render_quantization_page(report_of(3))
    page = ParsedPage(render_quantization_page(report_of(30)))
    assert [tag for tag, _, _ in page.elements].count("button") >= 17
    (find,) = (a for _, a, _ in page.elements if a.get("class") == "find")
    assert "hidden" in find


@pytest.mark.parametrize("count", [2000, 20_000])
def test_page_stays_below_2_mb(count: int) -> None:
    text = render_quantization_page(report_of(count, budget=MEMORY))
    assert len(text.encode()) < 2_000_000
    assert ("report.json has all" in text) == (count > 2000)


def test_chromium_draws_without_complaint(tmp_path: Path) -> None:
    check_drawn(render_quantization_page(report_of(26, budget=MEMORY)), tmp_path)
