"""Golden requests on every instruction set that this machine has, forced one by one.

oneDNN reads ONEDNN_MAX_CPU_ISA when a process first uses it, so each combination is a process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.dense_step import dense_instruction_sets
from kernels.errors import InputError
from kernels.native_backend import lookup_instruction_sets
from kernels.native_library import MAX_INSTRUCTION_SET, InstructionSet
from kernels.row_format import RowFormat
from sharded_infer.golden import generate_samples
from sharded_infer.precision import Precision
from sharded_infer.publication import publish
from sharded_infer.spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.zoo.registry import build_tower

FORMATS = (RowFormat.INT8, RowFormat.INT4, RowFormat.BF16, RowFormat.FP8, RowFormat.FP32)
# Ours, and oneDNN's: where the processor lacks one, oneDNN takes the best below it.
COMBINATIONS = (
    ("baseline", "SSE41"),
    ("avx2", "AVX2"),
    ("avx2", "AVX2_VNNI"),
    ("avx512", "AVX512_CORE"),
    ("avx512", "AVX512_CORE_VNNI"),
    ("avx512", "AVX512_CORE_BF16"),
    ("avx512", "AVX512_CORE_AMX"),
)
# How far scores are from those of the fastest set, by rounding in another order.
BOUNDS = {
    Precision.FP32: 1e-5,
    Precision.TF32: 1e-5,
    Precision.BF16: 5e-3,
    Precision.FP16: 1e-3,
    Precision.INT8: 5e-3,
}
SCRIPT = """
import json, sys
import torch
from kernels.native_backend import lookup_instruction_sets
from sharded_infer.golden import load_golden
from sharded_infer.int8_packing import has_exact_int8
from sharded_infer.model import open_model
from sharded_infer.model_check import check_golden

torch.set_num_threads(1)
told = {"sets": [s.name for s in lookup_instruction_sets()], "exact_int8": has_exact_int8()}
for path in sys.argv[1:]:
    model = open_model(path)
    golden = load_golden(model.artifact.path / model.artifact.manifest.golden.file, model.spec)
    scores = model.run(golden.model_input)["score"]
    told[model.name] = {"difference": check_golden(model), "scores": scores.tolist()}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A version for each precision of the tower, with a table of each format."""
    tables = tuple(TableSpec(f"t_{f}", rows=200, dim=48, format=f) for f in FORMATS)
    generator = torch.Generator().manual_seed(1)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) / 4 for t in tables}
    paths = []
    for precision in Precision:
        spec = ModelSpec(
            name=str(precision),
            tables=tables,
            dense=DenseSpec({"dense": 13}),
            tower=TowerSpec(architecture="dcnv2", precision=precision),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            tower = build_tower(
                "dcnv2",
                dense_inputs=spec.dense.inputs,
                feature_dims=[48] * len(tables),
                options={
                    "bottom": [128, 64],
                    "top": [128, 64, 1],
                    "cross_layers": 2,
                    "cross_rank": 64,
                },
            )
        folder = tmp_path_factory.mktemp("sets")
        samples = generate_samples(spec, 256)
        paths.append(publish(spec, weights, tower, folder, samples=samples).path)
    return paths


def told(versions: list[Path], ours: str, onednn: str) -> dict[str, object]:
    environment = os.environ | {MAX_INSTRUCTION_SET: ours, "ONEDNN_MAX_CPU_ISA": onednn}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, versions)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def fastest(versions: list[Path]) -> dict[str, object]:
    return told(versions, "", "DEFAULT")


@pytest.mark.parametrize(("ours", "onednn"), COMBINATIONS)
def test_golden_requests_score_alike_on_every_instruction_set(
    versions: list[Path], fastest: dict[str, object], ours: str, onednn: str
) -> None:
    if InstructionSet[ours.upper()] not in lookup_instruction_sets():
        pytest.skip(f"this machine has no {ours}, or nothing was compiled")
    found = told(versions, ours, onednn)
    assert found["sets"][-1] == ours.upper()  # type: ignore[index]
    for precision in Precision:
        here, there = found[precision], fastest[precision]
        # `check_golden` has refused whatever the gate does not allow.
        assert here["difference"] < 0.05  # type: ignore[index]
        torch.testing.assert_close(
            torch.tensor(here["scores"]),  # type: ignore[index]
            torch.tensor(there["scores"]),  # type: ignore[index]
            rtol=0,
            atol=BOUNDS[precision],
        )


def test_the_fastest_set_is_used_where_none_is_forced(fastest: dict[str, object]) -> None:
    assert fastest["sets"] == [s.name for s in lookup_instruction_sets()]


def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if not lookup_instruction_sets():
        pytest.skip("nothing was compiled")
    monkeypatch.setenv(MAX_INSTRUCTION_SET, "avx3")
    with pytest.raises(InputError, match="expected baseline, avx2, avx512, got 'avx3'"):
        lookup_instruction_sets()


def test_both_kernels_obey_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    if not lookup_instruction_sets():
        pytest.skip("nothing was compiled")
    monkeypatch.setenv(MAX_INSTRUCTION_SET, "baseline")
    assert lookup_instruction_sets() == dense_instruction_sets() == (InstructionSet.BASELINE,)
