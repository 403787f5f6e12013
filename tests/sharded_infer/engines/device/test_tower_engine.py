"""Engines on simulated devices: any plan, any batch, any order of the streams gives one result.

The oracle is the host's lookup of the same tables, unsharded.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.gpu.device_tables import DeviceTables
from kernels.gpu.reference_lookup import ReferenceLookup
from sharded_infer.engines.device.batch_memory import EngineShape
from sharded_infer.engines.device.buckets import device_buckets
from sharded_infer.engines.device.device_lookups import LookupMaker
from sharded_infer.engines.device.engine_set import Backends, EngineSet
from sharded_infer.engines.device.rank_tables import place_ranks
from sharded_infer.engines.device.runtime.runtime import Work
from sharded_infer.engines.device.runtime.simulated_runtime import SimulatedRuntime
from sharded_infer.errors import CapacityError
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.lookups.plan_lookups import PlanLookups
from sharded_infer.specs.model_spec import DenseSpec
from tests.sharded_infer.lookups.test_plan_lookups import (
    FEATURES,
    PLANS,
    SPEC,
    TABLES,
    WHOLE,
    batch_of,
    build_lookup,
    encoded_tables,
    plan_of,
    stored_pieces,
)

DENSE = replace(SPEC, dense=DenseSpec({"a": 2, "b": 3}))
POLICY = InputPolicy(SPEC)
SHAPE = EngineShape(buckets=device_buckets(12), ids=400)
# Where ranks are: each on a GPU, all on one, one in pinned memory.
DEVICE_MODELS = tuple(torch.device("cuda", index) for index in range(3))
PLACES: dict[str, tuple[torch.device | None, ...]] = {
    "three GPUs": DEVICE_MODELS,
    "one GPU": (DEVICE_MODELS[0],) * 3,
    "two GPUs": (DEVICE_MODELS[1], DEVICE_MODELS[0], DEVICE_MODELS[1]),
    "a GPU and the host": (DEVICE_MODELS[0], None, DEVICE_MODELS[0]),
}


class EchoTower:
    """Returns its inputs, so that they show in the scores."""

    output_widths = (None, 5 + SPEC.embedding_width)
    memory_bytes = 0

    def activation_bytes(self, batch: int) -> int:
        return 0

    def __call__(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        first = embeddings.sum(1) + dense[0][:, 0] if dense else embeddings.sum(1)
        return first, torch.cat([*dense, embeddings], 1)


def reference(
    tables: DeviceTables, _device: torch.device, _usual_ids: Sequence[float]
) -> ReferenceLookup:
    return ReferenceLookup(tables)


OVERLAPPED = replace(SHAPE, overlapped=True)


def engines_of(
    folder: Path,
    plan: str,
    places: Sequence[torch.device | None] = DEVICE_MODELS,
    *,
    runtime: SimulatedRuntime | None = None,
    replicated: tuple[str, ...] = (),
    shape: EngineShape = SHAPE,
    make_lookup: LookupMaker = reference,
) -> EngineSet:
    runtime = runtime or SimulatedRuntime(seed=3)
    made = plan_of(PLANS[plan], replicated=replicated)
    folder.mkdir(exist_ok=True)
    pieces = stored_pieces(folder, encoded_tables(), 150)
    placed = place_ranks(made, TABLES, pieces, places, runtime)
    return EngineSet(
        DENSE,
        placed,
        places,
        lambda device: EchoTower(),
        shape=shape,
        backends=Backends(runtime, make_lookup, "simulated"),
    )


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> PlanLookups:
    return build_lookup(tmp_path_factory.mktemp("oracle"), encoded_tables(), WHOLE)


def input_of(
    *groups: JaggedBatch, repeats: Sequence[int] | None = None, seed: int = 0
) -> ModelInput:
    size = max(group.batch_size for group in groups) if repeats is None else sum(repeats)
    generator = np.random.default_rng(seed)
    dense = tuple(generator.standard_normal((size, w), np.float32) for w in (2, 3))
    return ModelInput(
        size, groups, dense, repeats=None if repeats is None else np.array(repeats, np.int64)
    )


def check(engines: EngineSet, oracle: PlanLookups, batch: ModelInput) -> None:
    check_scores(engines.run(POLICY.apply(batch)), oracle, batch)


def check_scores(
    scores: Sequence[NDArray[np.float32]], oracle: PlanLookups, batch: ModelInput
) -> None:
    embeddings = oracle.look_up(batch, rows=batch.batch_size).pooled
    whole = [np.broadcast_to(one, (batch.batch_size, one.shape[1])) for one in batch.dense]
    expected = np.concatenate([*whole, embeddings.numpy()], 1)
    assert scores[0].shape == (batch.batch_size,)
    np.testing.assert_allclose(scores[1], expected, rtol=1e-5, atol=1e-5)
    first = embeddings.numpy().sum(1) + whole[0][:, 0]
    np.testing.assert_allclose(scores[0], first, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("shape", [SHAPE, OVERLAPPED], ids=["in turn", "overlapped"])
def test_every_plan_on_any_devices_gives_what_the_host_gives_in_the_estimated_memory(
    tmp_path: Path, oracle: PlanLookups, plan: str, places: str, shape: EngineShape
) -> None:
    runtime = SimulatedRuntime(seed=3)
    runtime.workspace_bytes = 1000  # of matrix products
    engines = engines_of(tmp_path, plan, PLACES[places], runtime=runtime, shape=shape)
    # Each tower's device has an engine of its own.
    assert len(engines.engines) == len(engines.devices)
    for device, memory in engines.memory.items():
        # Activations are the tower's own, which is none.
        held = memory.tables + memory.inputs + memory.buffers
        assert runtime.allocated(device) == held > 0
        assert memory.total == held + memory.workspace + memory.activations
        assert memory.workspace == (1000 if device in engines.devices else 0)
    for size in (1, 6, 12):
        check(engines, oracle, input_of(batch_of(size, seed=size), seed=size))


@pytest.mark.parametrize("plan", ["whole", "rows", "mixed"])
@pytest.mark.parametrize("shape", [SHAPE, OVERLAPPED], ids=["in turn", "overlapped"])
def test_shared_bags_are_looked_up_once_and_given_to_their_samples(
    tmp_path: Path, oracle: PlanLookups, plan: str, shape: EngineShape
) -> None:
    engines = engines_of(tmp_path, plan, shape=shape)
    for shared in ((0,), (1, 3), (1, 2, 3, 4, 5)):
        own = [feature for feature in FEATURES if feature not in shared]
        groups = batch_of(7, features=own, seed=1), batch_of(1, features=shared, seed=2)
        check(engines, oracle, input_of(*groups))
        groups = batch_of(9, features=own, seed=3), batch_of(3, features=shared, seed=4)
        check(engines, oracle, input_of(*groups, repeats=(2, 1, 6)))
    # A plain batch after one that shares.
    check(engines, oracle, input_of(batch_of(5, seed=9)))


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("plan", ["whole", "columns", "rows"])
def test_weights_and_ids_outside_their_tables_are_as_on_the_host(
    tmp_path: Path, oracle: PlanLookups, plan: str, captured: bool
) -> None:
    engines = engines_of(tmp_path, plan, shape=replace(SHAPE, weighted=captured))
    batch = input_of(batch_of(6, weighted=True, outside=True))
    checked = POLICY.apply(batch)
    assert checked.ids_outside > 0
    check_scores(engines.run(checked), oracle, batch)
    check(engines, oracle, input_of(batch_of(6)))
    # A group of a batch may have weights, and the other none.
    plain = batch_of(7, features=(1, 3, 5), seed=1)
    for bags in (7, 1):
        scaled = batch_of(bags, features=(0, 2, 4), weighted=True, seed=2)
        check(engines, oracle, input_of(plain, scaled))


class CountingRuntime(SimulatedRuntime):
    captures = replays = 0

    def capture(self, stream: Any, work: Work) -> Work:
        kept = super().capture(stream, work)
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            kept()

        return replay


@pytest.mark.parametrize("captured", [False, True])
def test_batches_with_weights_are_replayed_where_they_are_expected(
    tmp_path: Path, captured: bool
) -> None:
    runtime = CountingRuntime()
    shape = replace(SHAPE, weighted=captured)
    engines = engines_of(tmp_path, "whole", (DEVICE_MODELS[0],) * 3, runtime=runtime, shape=shape)
    kinds = 4 if captured else 2  # with and without shared bags, and weights
    assert runtime.captures == kinds * SHAPE.slots * len(SHAPE.buckets)
    engines.run(POLICY.apply(input_of(batch_of(6, weighted=True))))
    assert runtime.replays == captured
    engines.run(POLICY.apply(input_of(batch_of(6))))
    assert runtime.replays == captured + 1


@pytest.mark.parametrize("plan", ["whole", "mixed"])
@pytest.mark.parametrize("overlapped", [False, True])
def test_batches_that_no_graph_fits_are_run_all_the_same(
    tmp_path: Path, oracle: PlanLookups, plan: str, overlapped: bool
) -> None:
    shape = EngineShape(device_buckets(4), ids=30, overlapped=overlapped)
    engines = engines_of(tmp_path, plan, shape=shape)
    check(engines, oracle, input_of(batch_of(50)))  # too many samples
    full = JaggedBatch(FEATURES, np.zeros(240, np.int64), np.full((len(FEATURES), 4), 10))
    check(engines, oracle, input_of(full))  # too many ids
    check(engines, oracle, input_of(batch_of(2)))
    empty = JaggedBatch(FEATURES, np.empty(0, np.int64), np.zeros((len(FEATURES), 3), np.int64))
    check(engines, oracle, input_of(empty))


@pytest.mark.parametrize("replicated", [("ads",), ("ads", "country", "user", "page")])
@pytest.mark.parametrize("places", ["three GPUs", "one GPU", "two GPUs"])
def test_replicated_tables_are_read_where_the_tower_is(
    tmp_path: Path, oracle: PlanLookups, replicated: tuple[str, ...], places: str
) -> None:
    engines = engines_of(tmp_path, "ranks", PLACES[places], replicated=replicated)
    for seed in range(len(engines.engines)):
        check(engines, oracle, input_of(batch_of(6, seed=seed)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("plan", ["whole", "mixed"])
@pytest.mark.parametrize("shape", [SHAPE, OVERLAPPED], ids=["in turn", "overlapped"])
def test_batches_in_flight_do_not_meet_whatever_the_streams_do(
    tmp_path: Path, oracle: PlanLookups, plan: str, seed: int, shape: EngineShape
) -> None:
    engines = engines_of(tmp_path, plan, runtime=SimulatedRuntime(seed=seed), shape=shape)
    begin = threading.Barrier(4)

    def client(number: int) -> None:
        begin.wait(30)
        for turn in range(8):
            size = 1 + (number + turn) % 12
            check(engines, oracle, input_of(batch_of(size, seed=10 * number + turn)))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(client, number) for number in range(4)]:
            done.result(120)


def test_every_bucket_of_every_slot_is_captured_once(tmp_path: Path) -> None:
    runtime = CountingRuntime()
    engines = engines_of(tmp_path, "whole", (DEVICE_MODELS[0],) * 3, runtime=runtime)
    assert len(engines.engines) == 1
    made = 2 * SHAPE.slots * len(SHAPE.buckets)  # with and without shared bags
    assert runtime.captures == made
    for size in (1, 5, 12):
        engines.run(POLICY.apply(input_of(batch_of(size))))
    assert runtime.captures == made


@pytest.mark.parametrize(
    ("device_bytes", "words"),
    [
        (200, r"rank 0 of 'cpu:3': its tables need \d+ bytes: cuda:0"),
        (8000, r"cuda:\d: out of memory: batches need .* kB, .* free; the model takes"),
    ],
)
def test_what_is_beyond_a_devices_memory_is_refused_with_figures(
    tmp_path: Path, device_bytes: int, words: str
) -> None:
    with pytest.raises(CapacityError, match=words):
        engines_of(tmp_path, "rows", runtime=SimulatedRuntime(device_bytes=device_bytes))


def test_a_batch_beyond_a_devices_memory_is_refused_and_the_next_is_run(
    tmp_path: Path, oracle: PlanLookups
) -> None:
    estimated = engines_of(tmp_path / "free", "whole", (DEVICE_MODELS[0],) * 3).memory[
        DEVICE_MODELS[0]
    ]
    tight = SimulatedRuntime(device_bytes=estimated.total + 2000)
    engines = engines_of(tmp_path / "tight", "whole", (DEVICE_MODELS[0],) * 3, runtime=tight)
    with pytest.raises(CapacityError, match="cuda:0: out of memory: .* asked for"):
        engines.run(POLICY.apply(input_of(batch_of(500))))
    check(engines, oracle, input_of(batch_of(12)))
