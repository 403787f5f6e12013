from pathlib import Path

import pytest
import torch
from torch import nn

from kernels.row_format import RowFormat
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.engines.device.backends import rank_devices
from sharded_infer.engines.device.device_choice import DeviceChoice, parse_gpus
from sharded_infer.engines.device.device_engine import DeviceEngine
from sharded_infer.engines.device.rank_tables import allocate_ranks
from sharded_infer.engines.device.runtime.simulated_runtime import SimulatedRuntime
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import DeviceError, InputError, PlanError
from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.planning.plan import Plan, Shard, StoredTable
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import (
    ModelSpec,
    QuantizationSpec,
    TableSpec,
)
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.sharded_infer.engines.test_executor import SIZES, differences, request_of, requests_of
from tests.support.batches import run_together

# On the second a table is split by rows; on the third one rank is the host's memory.
TOPOLOGIES = ("h100:1", "h100:3x0.55KB", "h100:1x0.6KB+host:1")
SIMULATED = DeviceChoice(simulated=True, max_batch=64)


@pytest.fixture(scope="module")
def planned(
    trained_spec: ModelSpec,
    trained_weights: dict[str, torch.Tensor],
    trained_tower: nn.Module,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    return publish(trained_spec, trained_weights, trained_tower, folder, topologies=TOPOLOGIES).path


@pytest.fixture(scope="module", params=TOPOLOGIES)
def model(request: pytest.FixtureRequest, planned: Path) -> Model:
    return open_model(planned, topology=request.param, devices=SIMULATED)


@pytest.fixture(scope="module")
def host(planned: Path) -> Model:
    return open_model(planned)


def engine_of(model: Model) -> DeviceEngine:
    assert isinstance(model.engine, DeviceEngine)
    return model.engine


def test_golden_requests_score_as_published(model: Model) -> None:
    assert model.engine.waits
    assert check_golden(model) < 0.05


@pytest.mark.parametrize("weighted", [False, True])
def test_requests_of_one_batch_get_their_own_scores(
    model: Model, host: Model, weighted: bool
) -> None:
    requests = requests_of(model.spec, weighted=weighted)
    there, here = run_together(model, requests), run_together(host, requests)
    for one, other in zip(there, here, strict=True):
        assert max(differences(one, other).values()) < 1e-4
        assert one.ids_outside == other.ids_outside
    assert sum(len(one.scores[0]) for one in there) == sum(SIZES)


def test_a_model_with_sequences_is_refused_by_name(tmp_path: Path) -> None:
    class Positions(nn.Module):
        def forward(self, item: torch.Tensor, item_lengths: torch.Tensor) -> torch.Tensor:
            return item.sum((1, 2)) + item_lengths.to(torch.float32)

    spec = ModelSpec(
        "history",
        (TableSpec("item", 20, 8),),
        quantization=QuantizationSpec("fp32"),
        sequences={"item": SequenceSpec(8, features=("item",))},
    )
    weights = {"item": torch.ones(20, 8)}
    made = publish(spec, weights, Positions(), tmp_path, topologies=("h100:1",))
    with pytest.raises(DeviceError, match="model 'history': sequences are looked up on the host"):
        open_model(made.path, devices=SIMULATED)


def test_rows_are_counted_by_rank(planned: Path) -> None:
    whole = open_model(planned, topology="h100:1", devices=SIMULATED)
    split = open_model(planned, topology="h100:3x0.55KB", devices=SIMULATED)
    batch = merge_inputs(requests_of(whole.spec))
    one, several = run_batch(whole, batch).work, run_batch(split, batch).work
    assert [step[0] for step in one.steps] == [0] and len(several.steps) == 3
    [(_, rows, size, _)] = one.steps
    # Splits by columns read an id's row on each rank.
    assert sum(step[1] for step in several.steps) >= rows - 3 and size > rows
    assert one.rows_saved == several.rows_saved == 0
    shared = request_of(whole.spec, 6, (1, 2), seed=2)
    assert run_batch(whole, shared).work.rows_saved > 0


def test_tables_of_one_format_are_apart_by_the_accesses_that_read_them() -> None:
    tables = {
        "wide": StoredTable("wide", 10, 128, RowFormat.INT8),  # 144 bytes for 132
        "narrow": StoredTable("narrow", 10, 16, RowFormat.INT8),  # 20 bytes
        "more": StoredTable("more", 4, 124, RowFormat.INT8),  # 128 bytes
    }
    shards = tuple(Shard(t.name, 0, 0, t.rows, 0, t.dim) for t in tables.values())
    plan = Plan(parse_topology("h100:1"), shards)
    device = torch.device("cuda", 0)
    wide, narrow, more = sorted(
        allocate_ranks(plan, tables, [device], SimulatedRuntime()),
        key=lambda shard: ["wide", "narrow", "more"].index(shard.table.name),
    )
    assert wide.memory.data_ptr() == more.memory.data_ptr() != narrow.memory.data_ptr()
    assert [one.row_stride for one in (wide, narrow, more)] == [144, 20, 128]
    assert plan.bytes_by_rank(tables) == [10 * 144 + 10 * 20 + 4 * 128]


def test_ranks_share_gpus_where_that_is_said(planned: Path) -> None:
    choice = DeviceChoice(gpus=(1, 0, 1), simulated=True, max_batch=8)
    model = open_model(planned, topology="h100:3x0.55KB", devices=choice)
    assert [str(device) for device in engine_of(model).set.devices] == ["cuda:1", "cuda:0"]
    assert check_golden(model) < 0.05


def test_ranks_without_a_gpu_of_their_own_are_named(planned: Path) -> None:
    plan = open_artifact(planned).plan("h100:3x0.55KB")
    with pytest.raises(PlanError, match="3 ranks on GPUs there must be CUDA device 1"):
        rank_devices(plan, DeviceChoice(), 1)
    with pytest.raises(PlanError, match="2 GPU numbers for its 3 ranks"):
        rank_devices(plan, DeviceChoice(gpus=(0, 0)), 1)
    assert rank_devices(plan, DeviceChoice(gpus=(0, 0, 0)), 1) == [torch.device("cuda", 0)] * 3


def test_a_rank_that_is_no_gpu_lies_in_the_hosts_memory(planned: Path) -> None:
    plan = open_artifact(planned).plan("h100:1x0.6KB+host:1")
    assert rank_devices(plan, DeviceChoice(), 1) == [torch.device("cuda", 0), None]


def test_gpus_are_numbers() -> None:
    assert parse_gpus("0, 0,1") == (0, 0, 1) and parse_gpus(None) == ()
    for text in ("", "a", "1,", "-1"):
        with pytest.raises(InputError, match="expected numbers such as 0,0,1"):
            parse_gpus(text)


@pytest.mark.parametrize("weighted", [False, True])
def test_batches_with_weights_are_captured_where_golden_requests_have_weights(
    trained_weights: dict[str, torch.Tensor],
    trained_spec: ModelSpec,
    trained_tower: nn.Module,
    tmp_path: Path,
    weighted: bool,
) -> None:
    golden = request_of(trained_spec, 30, seed=3, weighted=weighted)
    published = publish(
        trained_spec,
        trained_weights,
        trained_tower,
        tmp_path,
        samples=golden,
        topologies=("h100:2",),
    )
    model = open_model(published.path, devices=SIMULATED)
    assert {engine.shape.weighted for engine in engine_of(model).set.engines} == {weighted}
    assert check_golden(model) < 0.05
