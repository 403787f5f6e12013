"""The benchmarks of quantization, run for real on little data: what they write, and its sense."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.conftest import Measure

DATA = Path(os.environ.get("SHARDED_INFER_DATA", Path(__file__).parents[3].parent / "shared/data"))
SAMPLE = DATA / "criteo_sample.tsv"
WAYS = ("int8", "int4", "fbgemm_int8", "fbgemm_int4", "copy")
RATES = {f"{way}_gb_per_second" for way in WAYS}
MIXES = ["fp32", "bf16", "int8", "int4", "int4 min-max", "int2", "int2 min-max", "budget 1/6"]
TABLES = 26


def test_bench_quantize_measures_the_command_beside_fbgemms_operator(
    measure_apart: Measure, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    options = ("--gigabytes", 0.02, "--rounds", 1, "--folder", folder)
    out, fields = measure_apart("quantize", *options, seconds=240)
    assert set(fields) == RATES | {
        "fp32_bytes",
        "int8_ratio",
        "int4_ratio",
        "peak_anonymous_bytes",
        "encoder",
    }
    assert fields["fp32_bytes"] == pytest.approx(0.02e9, rel=0.01)
    assert all(fields[name] > 0 for name in RATES)
    for name in ("int8", "int4"):
        ratio = fields[f"{name}_gb_per_second"] / fields[f"fbgemm_{name}_gb_per_second"]
        assert fields[f"{name}_ratio"] == pytest.approx(ratio)
        assert f"{fields[f'{name}_gb_per_second']:.2f}" in out
    # The libraries alone hold some 100 MB.
    assert 50e6 < fields["peak_anonymous_bytes"] < 900e6
    assert fields["encoder"] in out and "20.0 MB" in out
    assert list(folder.iterdir()) == []


def check_formats(fields: dict[str, Any], rows: int) -> dict[str, dict[str, Any]]:
    """What holds on any click log; the mixes by name."""
    assert fields["training_rows"] + fields["scored_rows"] == rows
    assert fields["scored_rows"] == rows // 5 > fields["clicks"] > 0
    assert [mix["name"] for mix in fields["mixes"]] == MIXES
    mixes = {mix["name"]: mix for mix in fields["mixes"]}
    fp32 = mixes["fp32"]
    for mix in mixes.values():
        figures = [mix[f"{name}_score_diff"] for name in ("mean", "p99", "max")]
        assert figures == sorted(figures)
        assert (figures[2] == 0) == (mix is fp32)
        assert 0 < mix["auc"] < 1 and 0 < mix["log_loss"] < 1
    assert abs(mixes["int8"]["auc"] - fp32["auc"]) <= 0.001
    assert mixes["bf16"]["table_bytes"] * 2 == fp32["table_bytes"]
    assert mixes["int4"]["table_bytes"] == mixes["int4 min-max"]["table_bytes"]
    assert mixes["budget 1/6"]["table_bytes"] * 6 <= fp32["table_bytes"]
    assert mixes["int4"]["table_bytes"] < mixes["budget 1/6"]["table_bytes"]
    errors = [mixes[name]["mean_score_diff"] for name in ("int8", "budget 1/6", "int4", "int2")]
    assert errors == sorted(errors)
    assert sum(fields["budget_formats"].values()) == TABLES and len(fields["budget_formats"]) > 1
    return mixes


def test_bench_formats_scores_held_out_clicks_in_every_mix(measure: Measure) -> None:
    out, fields = measure("formats", "--rows", 400)
    mixes = check_formats(fields, 400)
    for name, mix in mixes.items():
        (line,) = [one for one in out.splitlines() if one.startswith(f"{name}  ")]
        assert f"{mix['auc']:.5f}" in line and f"{mix['mean_score_diff']:.5f}" in line
    assert "generated clicks: trained on 320 lines, scored 80" in out


@pytest.mark.skipif(not SAMPLE.is_file(), reason=f"the sample of real clicks is not at {SAMPLE}")
def test_on_real_clicks_searched_ranges_change_scores_less_than_minimum_and_maximum(
    measure: Measure,
) -> None:
    _, fields = measure("formats", "--data", SAMPLE)
    assert fields["data"] == SAMPLE.name
    mixes = check_formats(fields, SAMPLE.read_bytes().count(b"\n"))
    # Processors round in training otherwise; where few bits are lost, chance has a part in scores.
    for name, most in (("int4", 1.5), ("int2", 1.0)):
        largest = most * mixes[f"{name} min-max"]["mean_score_diff"]
        assert mixes[name]["mean_score_diff"] < largest
    assert mixes["fp32"]["auc"] > 0.7
    # int2 holds a thirteenth of the bytes.
    assert mixes["int2"]["auc"] > mixes["fp32"]["auc"] - 0.01
