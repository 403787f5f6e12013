from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.gpu.device_tables import DeviceTables
from sharded_infer.engines.device.backends import triton_lookup
from sharded_infer.engines.device.batch_memory import EngineShape
from sharded_infer.inputs.model_input import JaggedBatch
from sharded_infer.lookups.plan_lookups import PlanLookups
from tests.sharded_infer.engines.device.test_tower_engine import PLACES, check, engines_of, input_of
from tests.sharded_infer.lookups.test_plan_lookups import (
    FEATURES,
    PLANS,
    WHOLE,
    batch_of,
    build_lookup,
    encoded_tables,
)


def interpreted(
    tables: DeviceTables, _device: torch.device, usual_ids: Sequence[float]
) -> triton_lookup:
    return triton_lookup(tables, torch.device("cpu"), usual_ids)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> PlanLookups:
    return build_lookup(tmp_path_factory.mktemp("oracle"), encoded_tables(), WHOLE)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("places", ["one GPU", "a GPU and the host"])
def test_engines_with_triton_kernels_give_what_the_host_gives(
    tmp_path: Path, oracle: PlanLookups, plan: str, places: str
) -> None:
    engines = engines_of(
        tmp_path,
        plan,
        PLACES[places],
        shape=EngineShape((4,), ids=200, weighted=True, slots=1),
        make_lookup=interpreted,
    )
    check(engines, oracle, input_of(batch_of(3, seed=1)))
    check(engines, oracle, input_of(batch_of(4, seed=2, weighted=True, outside=True)))
    groups = batch_of(4, features=(0, 2, 4), seed=3), batch_of(1, features=(1, 3, 5), seed=4)
    check(engines, oracle, input_of(*groups))
    # Of no graph, without an id: nothing of the ids' and weights' memory is left to point at.
    none = np.zeros((len(FEATURES), 6), np.int64)
    empty = JaggedBatch(FEATURES, np.empty(0, np.int64), none, np.empty(0, np.float32))
    check(engines, oracle, input_of(empty))
