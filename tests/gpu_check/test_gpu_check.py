"""The script that runs when a GPU shows up, tried without one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_check.native_build import build_missing

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
        # Scores that do not differ at all would say that nothing ran in this precision.
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
    assert set(report["tuning"]) == {"int8x32@16"}
    assert "dry run" in json.loads((tmp_path / "triton_choices.json").read_text())


def test_what_there_was_no_time_for_is_said_and_fails(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    report_file = tmp_path / "report.json"
    done = run("--dry-run", "--seconds", "0", "--out", str(report_file))
    assert done.returncode == 1
    report = json.loads(report_file.read_text())
    assert len(report["failures"]) == 7 + 4 + 1
    assert report["failures"][0].startswith("not checked: fp32")
    assert report["failures"][-2:] == ["not checked: tower, fp16", "not checked: engine, fp32"]
    assert report["lookups"]["measured"] == report["towers"]["measured"] == []


def test_without_a_gpu_it_says_so() -> None:
    done = run("--out")
    assert done.returncode == 2
    assert "no CUDA GPU here" in done.stderr


def test_a_package_that_is_not_there_is_named_before_anything_runs(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    error = 'ModuleNotFoundError("No module named pydantic", name="pydantic")'
    (tmp_path / "pydantic.py").write_text(f"raise {error}\n")
    done = run("--dry-run", "--out", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    assert "needs the Python package pydantic" in done.stderr


def test_libraries_are_built_as_an_installation_builds_them(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    for name in ("kernels", "quant", "sharded_infer"):
        shutil.copytree(ROOT / name / "native", tmp_path / name / "native")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert build_missing(tmp_path) == ["kernels", "sharded_infer", "quant"]
    assert len(list(tmp_path.glob("*/_native.so"))) == 3
