"""Golden requests on every instruction set that this machine has, forced one by one.

oneDNN reads ONEDNN_MAX_CPU_ISA when a process first uses it, so each combination is a process. All
are forked from one that has imported torch and used nothing of it.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.backends.native import lookup_instruction_sets
from kernels.dense_step import dense_instruction_sets
from kernels.errors import InputError
from kernels.machine import MAX_INSTRUCTION_SET, InstructionSet
from kernels.row_format import RowFormat
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
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
import json, os, sys
import torch
from kernels.backends.native import lookup_instruction_sets
from sharded_infer.artifacts.golden import load_golden
from sharded_infer.towers.lowering.int8_packing import has_exact_int8
from sharded_infer.engines.model import open_model
from sharded_infer.engines.golden_check import check_golden

def tell(paths):
    torch.set_num_threads(1)
    told = {"sets": [s.name for s in lookup_instruction_sets()], "exact_int8": has_exact_int8()}
    for path in paths:
        model = open_model(path)
        golden = load_golden(model.artifact.path / model.artifact.manifest.golden.file, model.spec)
        scores = model.run(golden.model_input)["score"]
        told[model.name] = {"difference": check_golden(model), "scores": scores.tolist()}
    print(json.dumps(told), flush=True)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.environ |= json.loads(line)
        tell(sys.argv[1:])
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        sys.exit(status)
"""
Asked = Callable[[str, str], dict[str, Any]]


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


@pytest.fixture(scope="module")
def told(versions: list[Path]) -> Iterator[Asked]:
    """What a process tells that has a limit of ours and one of oneDNN's."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *map(str, versions)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        given, answers = process.stdin, process.stdout

        def ask(ours: str, onednn: str) -> dict[str, Any]:
            print(
                json.dumps({MAX_INSTRUCTION_SET: ours, "ONEDNN_MAX_CPU_ISA": onednn}),
                file=given,
                flush=True,
            )
            line = answers.readline()
            assert line, "it died; its error is above"
            found: dict[str, Any] = json.loads(line)
            return found

        yield ask


@pytest.fixture(scope="module")
def fastest(told: Asked) -> dict[str, Any]:
    return told("", "DEFAULT")


@pytest.mark.parametrize(("ours", "onednn"), COMBINATIONS)
def test_golden_requests_score_alike_on_every_instruction_set(
    told: Asked, fastest: dict[str, Any], ours: str, onednn: str
) -> None:
    if InstructionSet[ours.upper()] not in lookup_instruction_sets():
        pytest.skip(f"this machine has no {ours}, or nothing was compiled")
    found = told(ours, onednn)
    assert found["sets"][-1] == ours.upper()
    for precision in Precision:
        here, there = found[precision], fastest[precision]
        # `check_golden` has refused whatever the gate does not allow.
        assert here["difference"] < 0.05
        torch.testing.assert_close(
            torch.tensor(here["scores"]),
            torch.tensor(there["scores"]),
            rtol=0,
            atol=BOUNDS[precision],
        )


def test_the_fastest_set_is_used_where_none_is_forced(fastest: dict[str, Any]) -> None:
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
