import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kernels.row_format import RowFormat
from sharded_infer.artifacts.report_file import report_from_fields
from sharded_infer.errors import GateError, StorageError, WeightsError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.publishing.quantization import open_format_plan, quantize
from sharded_infer.quality.quality import CalibrationSamples
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.spec_file import parse_spec
from tests.reference.row_encoding import encode

FIELDS: dict[str, Any] = {
    "name": "m",
    "tables": [
        {"name": "ads", "rows": 300, "dim": 8},
        {"name": "user", "rows": 100, "dim": 4, "format": "int4"},
    ],
}

Weights = dict[str, Tensor]


class Clicks(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return torch.sigmoid(embeddings.sum(1))


@pytest.fixture
def spec() -> ModelSpec:
    return parse_spec(FIELDS)


@pytest.fixture
def weights() -> Weights:
    generator = torch.Generator().manual_seed(0)
    return {
        "ads": torch.randn(300, 8, generator=generator),
        "user": torch.randn(100, 4, generator=generator),
    }


def samples() -> CalibrationSamples:
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.integers(0, 300, 400), generator.integers(0, 100, 400)])
    batch = JaggedBatch((0, 1), values, np.ones((2, 400), np.int64))
    labels = np.tile([0, 1], 200).astype("f4")
    return CalibrationSamples(ModelInput(400, (batch,), ()), {"score": labels})


def test_a_folder_holds_the_tables_where_they_are_and_what_was_done(
    spec: ModelSpec, weights: Weights, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "out"
    report = quantize(open_format_plan(spec, weights), out)
    files = [f"tables/int{bits}-00000.safetensors" for bits in (4, 8)]
    assert {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()} == {
        *("report.json", "tables.json", *files, *(f"{name}.blocks" for name in files))
    }
    described = json.loads((out / "tables.json").read_text())
    for name, row_format in (("ads", RowFormat.INT8), ("user", RowFormat.INT4)):
        (table,) = [t for t in described["tables"] if t["name"] == name]
        (piece,) = table["pieces"]
        stored = load_file(out / piece["file"])[piece["entry"]]
        assert torch.equal(stored, encode(row_format, weights[name]))
        content = (out / piece["file"]).read_bytes()
        record = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert described["files"][piece["file"]] == record
    assert report_from_fields(json.loads((out / "report.json").read_text())) == report
    assert list(tmp_path.glob("**/.staging*")) == []


def test_a_gate_that_fails_leaves_nothing(weights: Weights, tmp_path: Path) -> None:
    spec = parse_spec({**FIELDS, "gate": {"max_score_diff": 0.001}})
    plan = open_format_plan(spec, weights)
    with pytest.raises(GateError, match=r"by 0\.\d+, the spec allows 0.001.*by itself: user"):
        quantize(plan, tmp_path / "out", tower=Clicks(), calibration=samples())
    assert list(tmp_path.iterdir()) == []


class Hiding(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings.nan_to_num().clamp(-1, 1).sum(1)


@pytest.mark.parametrize("stored", ["fp32", "bf16", "fp8", "int8"])
@pytest.mark.parametrize(("number", "held"), [(7e4, {"int8", "int4", "int2"}), (1e6, {"int8"})])
def test_formats_that_cannot_hold_a_row_are_not_compared(
    stored: str, number: float, held: set[str], weights: Weights, tmp_path: Path
) -> None:
    weights["ads"][7, 0] = number
    batch = JaggedBatch((0, 1), np.array([7, 8, 1, 2]), np.ones((2, 2), np.int64))
    calibration = CalibrationSamples(ModelInput(2, (batch,), ()))
    tables = [{**FIELDS["tables"][0], "format": stored}, FIELDS["tables"][1]]
    fields = {"name": "m", "tables": tables, "gate": {"max_score_diff": 100}}
    plan = open_format_plan(parse_spec(fields), weights)
    report = quantize(plan, tmp_path / "out", tower=Hiding(), calibration=calibration)
    assert report.calibration is not None
    assert {mix.name for mix in report.calibration.mixes} == {"fp32", "published", *held}


def test_a_row_not_stored_leaves_nothing(spec: ModelSpec, weights: Weights, tmp_path: Path) -> None:
    weights["user"][42, 1] = torch.nan
    with pytest.raises(WeightsError, match="table 'user', row 42: holds NaN"):
        quantize(open_format_plan(spec, weights), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_way_stays(spec: ModelSpec, weights: Weights, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(StorageError, match="out: is there already, expected a new or an empty"):
        quantize(open_format_plan(spec, weights), tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "keep"
    (tmp_path / "empty").mkdir()
    quantize(open_format_plan(spec, weights), tmp_path / "empty")
    assert (tmp_path / "empty" / "report.json").is_file()


def test_tables_beyond_the_disk_are_refused_at_first(weights: Weights, tmp_path: Path) -> None:
    class Vast:
        """More rows than any disk holds, none of which is ever read."""

        description = "vast weights"

        def keys(self) -> list[str]:
            return ["ads"]

        def shape(self, key: str) -> tuple[int, ...]:
            return (2**42, 8)

        def read(self, key: str, start: int, stop: int) -> Tensor:
            return torch.zeros(stop - start, 8)

    spec = parse_spec({"name": "m", "tables": [{"name": "ads", "rows": 2**42, "dim": 8}]})
    with pytest.raises(StorageError, match=r"the tables need 52.8 TB, .* are free"):
        quantize(open_format_plan(spec, Vast()), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_is_explained_and_leaves_nothing(tmp_path: Path) -> None:
    program = command(tmp_path, rows=50_000, file_bytes=100_000)
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot be written: File too large; the tables need 600 kB" in done.stderr
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.glob(".staging*")) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_folder_and_can_be_started_again(
    how: signal.Signals, tmp_path: Path
) -> None:
    program = command(tmp_path, rows=3_000_000)
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob(".staging-*/tables/*")):
            ended = process.poll()
            assert ended is None, (ended, process.communicate()[0])
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(how)
        process.communicate(timeout=120)
    assert process.returncode != 0
    assert not (tmp_path / "out").exists()
    again = subprocess.run(command(tmp_path, rows=1000), capture_output=True, check=False)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "out" / "report.json").is_file()
    assert list(tmp_path.glob(".staging*")) == []


def command(folder: Path, *, rows: int, file_bytes: int = -1) -> list[str]:
    """A separate `quantize` of one int8 table of dim 8.

    Args:
        file_bytes: the longest file that it may write; -1: no limit.
    """
    weights = folder / f"w{rows}.safetensors"
    save_file({"ads": torch.ones(rows, 8) * torch.arange(8)}, weights)
    # Set here and not between fork and exec, where the tests' own threads may hold locks. A shell's
    # background job, say, ignores SIGINT, and its children would too.
    program = f"""
import resource, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
resource.setrlimit(resource.RLIMIT_FSIZE, ({file_bytes}, {file_bytes}))
from quant.sources.checkpoint import open_weights
from sharded_infer.errors import ShardedInferError
from sharded_infer.publishing.quantization import open_format_plan, quantize
from sharded_infer.specs.spec_file import parse_spec
from pathlib import Path
import sys
spec = parse_spec({{"name": "m", "tables": [{{"name": "ads", "rows": {rows}, "dim": 8}}]}})
try:
    plan = open_format_plan(spec, open_weights(Path({str(weights)!r})))
    quantize(plan, Path({str(folder / "out")!r}))
except ShardedInferError as error:
    sys.exit(f"error: {{error}}")
"""
    return [sys.executable, "-c", program]
