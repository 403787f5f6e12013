"""One run of TorchRec's planner in a separate process, so that it can be killed at a limit.

    python -m benchmarks.plan.torchrec_process < request > answer

Set up like TorchRec's own `shard_quant_model`: quantized tables on the meta device, no memory
reserved. But the batch is the caller's, the devices' bandwidths are ours, and its statistics are
off: they take time and change no plan. A signal ends the process at the limit; importing TorchRec
and building its modules do not count. `plan` starts this module, which needs TorchRec.
"""

import logging
import pickle
import signal
import sys
import time

import torch
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimator,
    EmbeddingStorageEstimator,
)
from torchrec.distributed.planner.stats import NoopEmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError, Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.inference.modules import DEFAULT_SHARDERS
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.quant.embedding_modules import EmbeddingBagCollection

from benchmarks.plan.families import PlanCase
from sharded_infer.planning.cost_model import DEFAULT_BATCH
from sharded_infer.planning.plan import Shard

# All shardings of quantized tables in TorchRec; in device memory, as our plans are.
SHARDING_TYPES = {"quick": ["table_wise"], "full": ["table_wise", "row_wise", "column_wise"]}
KERNELS = ["quant"]
_REPEATS = 3
_REPEAT_BELOW_SECONDS = 2.0


def main() -> None:
    """Read a case, plan, and write the seconds (a median if short) and the shards, or None."""
    logging.disable(logging.CRITICAL)
    case, search, limit_seconds = pickle.load(sys.stdin.buffer)  # noqa: S301 - our own
    module = _module(case)
    seconds: list[float] = []
    while len(seconds) < _REPEATS and sum(seconds) < _REPEAT_BELOW_SECONDS:
        planner = _planner(case, search)
        # SIGALRM's default action ends the process, whatever it is doing.
        signal.setitimer(signal.ITIMER_REAL, limit_seconds)
        start = time.perf_counter()
        try:
            plan = planner.plan(module, DEFAULT_SHARDERS)
        except PlannerError:
            pickle.dump((None, []), sys.stdout.buffer)
            return
        seconds.append(time.perf_counter() - start)
        signal.setitimer(signal.ITIMER_REAL, 0)
    median = sorted(seconds)[len(seconds) // 2]
    pickle.dump((median, _shards(plan)), sys.stdout.buffer)


def _module(case: PlanCase) -> torch.nn.Module:
    configs = [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=use.table.rows,
            embedding_dim=use.table.dim,
            feature_names=[f"{name}:{number}" for number in range(len(use.features))],
            data_type=DataType.INT8,
        )
        for name, use in case.uses.items()
    ]
    # Scale and bias apart, so that columns are the table's, not those of its stored bytes.
    bags = EmbeddingBagCollection(
        configs,
        is_weighted=False,
        device=torch.device("meta"),
        quant_state_dict_split_scale_bias=True,
    )
    return torch.nn.ModuleDict({"bags": bags})


def _planner(case: PlanCase, search: str) -> EmbeddingShardingPlanner:
    device = case.topology.devices[0]
    # TorchRec counts bytes a millisecond.
    topology = Topology(
        world_size=len(case.topology.devices),
        compute_device="cuda",
        hbm_cap=device.memory_bytes,
        hbm_mem_bw=device.memory_bandwidth / 1000,
        hbm_to_ddr_mem_bw=device.host_bandwidth / 1000,
        intra_host_bw=(device.peer_bandwidth or 0.0) / 1000,
    )
    constraints = {
        name: ParameterConstraints(
            sharding_types=SHARDING_TYPES[search],
            compute_kernels=KERNELS,
            pooling_factors=[feature.pooling_factor for feature in use.features],
        )
        for name, use in case.uses.items()
    }
    shared = {"topology": topology, "constraints": constraints}
    estimators = [
        EmbeddingPerfEstimator(**shared, is_inference=True),
        EmbeddingStorageEstimator(**shared, is_inference=True),
    ]
    return EmbeddingShardingPlanner(
        **shared,
        batch_size=DEFAULT_BATCH,
        enumerator=EmbeddingEnumerator(**shared, batch_size=DEFAULT_BATCH, estimator=estimators),
        storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
        stats=NoopEmbeddingStats(),
        debug=False,
    )


def _shards(plan: ShardingPlan) -> list[Shard]:
    shards = []
    for name, parameter in plan.plan["bags"].items():
        parts = parameter.sharding_spec.shards
        for rank, part in zip(parameter.ranks, parts, strict=True):
            (row, column), (rows, columns) = part.shard_offsets, part.shard_sizes
            shards.append(Shard(name, rank, row, row + rows, column, column + columns))
    return shards


if __name__ == "__main__":
    main()
