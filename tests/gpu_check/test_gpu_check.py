"""The script for a machine with a GPU, tried without one."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels.row_format import RowFormat
from tests.gpu_check.native_build import build_missing
from tests.gpu_check.processes import in_processes
from tests.gpu_check.summary import summary
from tests.gpu_check.supervision import supervise

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= variables
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu_check", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_dry_run_goes_through_every_stage(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    done = run("--dry-run", "--seed", "1", "--out", str(tmp_path / "report.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["failures"] == []
    assert report["correctness"]["checked"] == 7 and report["correctness"]["left_out"] == []
    kernels = {line["kernel"] for line in report["lookups"]["measured"]}
    assert kernels == {"triton", "embedding_bag"}
    towers = {line["precision"]: line for line in report["towers"]["measured"]}
    assert list(towers) == ["fp32", "tf32", "bf16", "fp16"]
    for precision, line in towers.items():
        # Equal scores would show that nothing ran in this precision.
        assert (precision == "fp32") or 1e-6 < line["max_score_diff"] < line["allowed_score_diff"]
        assert line["share_of_ceiling"] > 0 and line["activation_bytes"] > 0
        assert report["ceilings"][f"{precision}_operations_per_second"] > 0
    assert report["towers"]["spread"] > 0.2 and report["towers"]["left_out"] == []
    assert len(report["plans"]["max_score_diff"]) == 4
    assert max(report["plans"]["max_score_diff"].values()) < 1e-4
    [engine] = report["engine"]["measured"]
    assert [line["batch"] for line in engine["offline"]] == [3, 6]
    assert all(line["pairs_per_second"] > 0 for line in engine["offline"])
    assert len(engine["server"]) == 3 and engine["estimated_bytes"] > 0
    assert set(engine["stages"]) == {"3", "6"}
    assert set(report["tuning"]["times"]) == {"int8"}
    page = (tmp_path / "report.md").read_text()
    assert page.startswith("no card, a dry run; torch ") and page.count("| not judged |") == 9
    assert "DLRM-v2, fp32, lookups beside towers | " in page


def test_a_summary_judges_each_figure_by_its_limit() -> None:
    report = json.loads((ROOT / "docs" / "benchmarks-gpu.json").read_text())
    page = summary(report)
    line = "| lookups, bf16, multi-hot, 2048 samples, share of a copy | 0.85"
    assert any(row.startswith(line) and row.endswith("| passed |") for row in page.splitlines())
    assert "| DLRM-v2, bf16, samples/s offline | 21,240.2 | ≥ 25,000 | 0.85 | **missed** |" in page


def test_what_there_was_no_time_for_is_said_and_fails(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    report_file = tmp_path / "report.json"
    done = run("--dry-run", "--seconds", "0", "--out", str(report_file))
    assert done.returncode == 1
    report = json.loads(report_file.read_text())
    assert len(report["failures"]) == 7 + 1 + 4
    assert report["failures"][0].startswith("not checked: fp32")
    assert report["failures"][-5] == "not checked: engine, fp32"
    assert report["failures"][-1] == "not checked: tower, fp16"
    assert report["lookups"]["measured"] == report["towers"]["measured"] == []


def test_without_a_gpu_it_says_so() -> None:
    done = run()
    assert done.returncode == 2
    assert "no CUDA GPU here" in done.stderr


def test_a_package_that_is_not_there_is_named_before_anything_runs(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    error = 'ModuleNotFoundError("No module named pydantic", name="pydantic")'
    (tmp_path / "pydantic.py").write_text(f"raise {error}\n")
    done = run("--dry-run", "--out", str(tmp_path / "r.json"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    assert "needs the Python package pydantic" in done.stderr


# A stage that writes a figure and then ends.
STAGE = """
import os, sys, time
from pathlib import Path
from tests.gpu_check.supervision import write_json
write_json(Path(sys.argv[1]), {"figure": 1})
os.abort() if sys.argv[2] == "crash" else time.sleep(60)
"""


@pytest.mark.parametrize(("end", "said"), [("crash", "ended with -6"), ("hang", "killed after 5")])
def test_figures_outlive_a_stage_that_crashes_or_hangs(end: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "stage.json"
    problem = supervise([sys.executable, "-c", STAGE, str(path), end], 5, ROOT)
    assert problem.startswith(said)
    assert json.loads(path.read_text()) == {"figure": 1}


def case_of(end: str) -> str:
    if end == "crash":
        os.abort()
    time.sleep(60 if end == "hang" else 0)
    return {"result": "found"}[end]


def test_a_case_that_crashes_or_hangs_leaves_the_others_alone() -> None:
    cases = ["crash", "result", "hang", "error", "result"]
    found = [str(found) for _, found in in_processes(case_of, cases, seconds=20)]
    assert found == [
        "its process ended with -6",
        "found",
        "no result after 20 s",
        "KeyError: 'error'",
        "found",
    ]


def test_moved_bytes_are_whole_sectors_of_rows_and_what_is_written() -> None:
    pytest.importorskip("triton")
    from tests.gpu_check.lookups import moved_bytes

    # 2 bags of 3 and of 1 ids; an int8 row of dim 128 lies in 5 sectors of 32 bytes.
    rows, outputs, ids, offsets = 8 * 5 * 32, 4 * 128 * 4, 8 * 4, 5 * 4
    assert moved_bytes(RowFormat.INT8, (3, 1), 2) == rows + outputs + ids + offsets


def test_libraries_are_built_as_an_installation_builds_them(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    shutil.copytree(ROOT / "native", tmp_path / "native")
    for name in ("kernels", "quant", "sharded_infer"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert build_missing(tmp_path) == ["kernels", "sharded_infer", "quant"]
    assert len(list(tmp_path.glob("*/_native.so"))) == 3
