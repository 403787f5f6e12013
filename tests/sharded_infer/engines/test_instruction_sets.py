"""Every tower of the zoo on every class of processors that this machine can be limited to.

torch and oneDNN read their limits when a process first uses them, so each class is a process. All
are forked from one that has imported torch and used nothing of it.
"""

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest
import torch

from kernels.errors import InputError
from kernels.machine import (
    MAX_INSTRUCTION_SET,
    Feature,
    InstructionSet,
    ProcessorClass,
    instruction_sets,
    limited_machine,
    machine,
)
from kernels.row_format import RowFormat
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.zoo.registry import ARCHITECTURES, build_tower
from tests.sharded_infer.zoo.test_published_sequence_towers import BOUNDS as SEQUENCE_BOUNDS
from tests.sharded_infer.zoo.test_published_sequence_towers import Trained
from tests.support.processor_classes import PROCESSOR_CLASSES, can_run, limiting_variables

FORMATS = (RowFormat.INT8, RowFormat.INT4, RowFormat.BF16, RowFormat.FP8, RowFormat.FP32)
DIM = 48


class Published(NamedTuple):
    architecture: str
    precision: Precision

    @property
    def name(self) -> str:
        return f"{self.architecture} {self.precision}"


_SEQUENCES = tuple(name for name, one in ARCHITECTURES.items() if one.companions is not None)
_PLAIN = tuple(name for name in ARCHITECTURES if name not in _SEQUENCES)
TOWERS: Final[Mapping[str, tuple[Published, ...]]] = MappingProxyType(
    {
        "some": (
            Published("din", Precision.FP32),
            Published("hstu", Precision.FP32),
            Published("dcnv2", Precision.BF16),
            Published("dcnv2", Precision.INT8),
        ),
        "all": (
            *(Published("dcnv2", precision) for precision in Precision),
            # Others in fp32, and in one of the low precisions.
            *(
                Published(architecture, precision)
                for number, architecture in enumerate((*_PLAIN, *_SEQUENCES))
                for precision in (Precision.FP32, (Precision.BF16, Precision.INT8)[number % 2])
                if architecture != "dcnv2"
            ),
        ),
    }
)
CASES = pytest.mark.parametrize(
    ("towers", "limit"),
    [("some", "baseline"), ("some", "avx2"), *(("all", limit) for limit in PROCESSOR_CLASSES)],
)
# How far scores are from those of the fastest class, and of the whole tower, by rounding in another
# order.
BOUNDS = {
    Precision.FP32: 1e-5,
    Precision.TF32: 1e-5,
    Precision.BF16: 5e-3,
    Precision.FP16: 1e-3,
    Precision.INT8: 5e-3,
}
SCRIPT = """
import json, os, sys, traceback
import torch
from kernels.machine import instruction_sets
from kernels.product import product_dtypes
from sharded_infer.artifacts.golden import load_golden
from kernels.sequences.user_states import UserStates
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import open_model
from sharded_infer.engines.user_cache import UserCache
from sharded_infer.towers.host_products import ProductsOption
from sharded_infer.towers.lowering.int8_packing import has_exact_int8

ALONE = 12

def ran(path, option):
    model = open_model(path, products=option)
    golden = load_golden(model.artifact.path / model.artifact.manifest.golden.file, model.spec)
    given = golden.model_input
    whole = model.run(given)["score"]
    assert len(whole) > ALONE
    of_each = [model.run(given.samples(at, at + 1))["score"].tolist() for at in range(ALONE)]
    model.engine.users = UserCache(UserStates(1 << 20), bytes(16))
    together = model.run(given.samples(0, ALONE))["score"]
    users, model.engine.users = model.engine.users.misses, None
    return model.products, {
        "difference": check_golden(model),
        "whole": whole.tolist(),
        "alone": sum(of_each, []),
        "together": together.tolist(),
        "users": users,
    }

def tell(paths):
    torch.set_num_threads(1)
    told = {
        "sets": [one.name for one in instruction_sets()],
        "aten": torch.backends.cpu.get_cpu_capability(),
        "exact_int8": has_exact_int8(),
        "products": sorted(str(one).removeprefix("torch.") for one in product_dtypes()),
    }
    for name, path in paths.items():
        products, scores = ran(path, ProductsOption.AUTO)
        told[name] = {"running": products.running, products.running: scores}
        if products.published not in ("fp32", "tf32"):
            is_raised = products.running == "fp32"
            other = ProductsOption.PUBLISHED if is_raised else ProductsOption.FP32
            products, scores = ran(path, other)
            told[name][products.running] = scores
    print(json.dumps(told), flush=True)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        asked = json.loads(line)
        os.environ |= asked["environment"]
        try:
            tell(asked["paths"])
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        print(json.dumps({"died": status}), flush=True)
"""
Asked = Callable[[str, str], dict[str, Any]]


def publish_plain(tower: Published, folder: Path) -> Path:
    tables = tuple(TableSpec(f"t_{f}", rows=200, dim=DIM, format=f) for f in FORMATS)
    generator = torch.Generator().manual_seed(1)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) / 4 for t in tables}
    options: dict[str, Any] = {"bottom": [128, DIM], "top": [128, 64, 1]}
    if tower.architecture == "dcnv2":
        options |= {"cross_layers": 2, "cross_rank": 64}
    users = tuple(table.name for table in tables[:2])
    spec = ModelSpec(
        name=tower.architecture,
        tables=tables,
        dense=DenseSpec({"dense": 13}),
        tower=TowerSpec(
            architecture=tower.architecture,
            options=options,
            precision=tower.precision,
            user_inputs=users,
        ),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = build_tower(
            tower.architecture,
            dense_inputs=spec.dense.inputs,
            feature_dims=[DIM] * len(tables),
            options=options,
        )
    return publish(spec, weights, module, folder, samples=generate_samples(spec, 256)).path


def publish_sequences(tower: Published, folder: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        trained = Trained(tower.architecture)
    [rows] = [rows for rows, precision in SEQUENCE_BOUNDS if precision is tower.precision]
    calibration = trained.samples(tuple(n % 24 for n in range(128)), 128, seed=1)
    spec = trained.spec(rows, tower.precision)
    return publish(spec, trained.tables, trained.tower, folder, calibration=calibration).path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Published], Path]:
    paths: dict[Published, Path] = {}

    def path_of(tower: Published) -> Path:
        if tower not in paths:
            make = publish_plain if tower.architecture in _PLAIN else publish_sequences
            paths[tower] = make(tower, tmp_path_factory.mktemp("towers"))
        return paths[tower]

    return path_of


@pytest.fixture(scope="module")
def told(
    published: Callable[[Published], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asked]:
    """Results of some towers from a process with the limits of a class.

    Equal classes, which this machine cannot distinguish, share a process.
    """
    cache = tmp_path_factory.mktemp("cache")
    answers: dict[tuple[object, ...], dict[str, Any]] = {}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        given, lines = process.stdin, process.stdout

        def ask(towers: str, limit: str) -> dict[str, Any]:
            if not can_run(limit):
                pytest.skip(f"this machine has no {limit}, or nothing was compiled")
            asked = limiting_variables(limit)
            here = limited_machine(platform.machine(), machine().processor, asked)
            key = towers, here.ours, here.onednn, asked["ATEN_CPU_CAPABILITY"]
            if key not in answers:
                paths = {one.name: str(published(one)) for one in TOWERS[towers]}
                # Remembered times of products are of this process alone.
                asked["XDG_CACHE_HOME"] = str(cache)
                print(json.dumps({"environment": asked, "paths": paths}), file=given, flush=True)
                line = lines.readline()
                assert line, "the process that forks is gone; its error is above"
                answers[key] = json.loads(line)
            answer = answers[key]
            assert "died" not in answer, f"exit code {answer['died']}; its error is above"
            return answer

        yield ask


@pytest.fixture
def found(told: Asked, towers: str, limit: str) -> dict[str, Any]:
    return told(towers, limit)


@pytest.fixture
def fastest(told: Asked, towers: str) -> dict[str, Any]:
    return told(towers, [one for one in PROCESSOR_CLASSES if can_run(one)][-1])


def running_precisions(published: Precision, limit: str, *, exact_int8: bool) -> set[Precision]:
    """Precisions in which a class may compute a tower; several where they are timed."""
    here, most = machine().processor, ProcessorClass[limit.upper()]

    def has(feature: Feature, first: ProcessorClass) -> bool:
        return most >= first and feature in here

    fp32 = {Precision.FP32}
    if published is Precision.BF16:
        return {published} if has(Feature.BF16, ProcessorClass.AVX512_BF16) else fp32
    if published is Precision.FP16:
        return {published} if has(Feature.FP16, ProcessorClass.AMX) else fp32
    if published is not Precision.INT8:
        return fp32
    if has(Feature.AVX512_VNNI, ProcessorClass.AVX512_VNNI):
        return {published}
    return {published, *fp32} if exact_int8 or has(Feature.AVX2, ProcessorClass.AVX2) else fp32


@CASES
def test_a_tower_loads_and_scores_alike_on_every_class_of_processors(
    found: dict[str, Any], fastest: dict[str, Any], towers: str
) -> None:
    for tower in TOWERS[towers]:
        computed = found[tower.name].keys() - {"running"}
        assert computed == fastest[tower.name].keys() - {"running"}
        for precision in computed:
            here, there = found[tower.name][precision], fastest[tower.name][precision]
            # `check_golden` has refused whatever the gate does not allow.
            assert here["difference"] < 0.05
            assert_close(here["whole"], there["whole"], tower, precision)


@CASES
def test_a_tower_in_two_stages_scores_as_the_whole_tower_on_every_class(
    found: dict[str, Any], towers: str
) -> None:
    for tower in TOWERS[towers]:
        for precision in found[tower.name].keys() - {"running"}:
            here = found[tower.name][precision]
            assert here["users"] == len(here["alone"]) == len(here["together"]) > 1
            whole = here["whole"][: len(here["alone"])]
            # Not one score for all.
            assert torch.tensor(whole).std() > 1e-4
            assert_close(here["alone"], whole, tower, precision)
            assert_close(here["together"], whole, tower, precision)


@CASES
def test_a_tower_runs_in_the_published_precision_where_the_processor_multiplies_in_it(
    found: dict[str, Any], towers: str, limit: str
) -> None:
    for architecture, precision in TOWERS[towers]:
        running = found[f"{architecture} {precision}"]["running"]
        allowed = running_precisions(precision, limit, exact_int8=found["exact_int8"])
        assert running in allowed, (architecture, precision)


@CASES
def test_a_process_has_the_code_of_its_class_and_none_beyond(
    found: dict[str, Any], limit: str
) -> None:
    limits = PROCESSOR_CLASSES[limit]
    assert found["sets"][-1] == limits.ours.name
    assert found["aten"].lower() == limits.aten
    assert ("float32" in found["products"]) == (limits.ours is not InstructionSet.BASELINE)
    if limit == "baseline":
        assert found["products"] == []


def test_an_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_INSTRUCTION_SET, "avx3")
    with pytest.raises(InputError, match=f"expected {', '.join(PROCESSOR_CLASSES)}, got 'avx3'"):
        instruction_sets()


def assert_close(
    found: list[float], expected: list[float], tower: Published, precision: str
) -> None:
    one, other = (torch.tensor(scores) for scores in (found, expected))
    bound = BOUNDS[Precision(precision)]
    text = f"{tower.name} in {precision}"
    torch.testing.assert_close(one, other, rtol=0, atol=bound, msg=lambda of: f"{text}: {of}")
