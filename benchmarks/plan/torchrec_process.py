"""One run of TorchRec's planner in a separate process, so that it can be killed at a limit.

    python -m benchmarks.plan.torchrec_process < request.json > answer.json

Set up like TorchRec's own `shard_quant_model`: quantized tables on the meta device, no memory
reserved. But the batch is the caller's, the devices' bandwidths are ours, and its statistics are
off: they take time and change no plan. A signal ends the process at the limit; importing TorchRec
and building its modules do not count. `torchrec_planner` starts this module, which needs TorchRec.
"""

import json
import logging
import signal
import sys
import time
from typing import Any

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

# All shardings of quantized tables in TorchRec; in device memory, as our plans are.
SHARDING_TYPES = {"quick": ["table_wise"], "full": ["table_wise", "row_wise", "column_wise"]}
KERNELS = ["quant"]
_REPEATS = 3
_REPEAT_BELOW_SECONDS = 2.0


def main() -> None:
    """Read a request, plan, and write the seconds (a median if short) and the shards."""
    logging.disable(logging.CRITICAL)
    request = json.load(sys.stdin)
    module = _module(request["tables"])
    seconds: list[float] = []
    while len(seconds) < _REPEATS and sum(seconds) < _REPEAT_BELOW_SECONDS:
        planner = _planner(request)
        # SIGALRM's default action ends the process, whatever it is doing.
        signal.setitimer(signal.ITIMER_REAL, request["limit_seconds"])
        start = time.perf_counter()
        try:
            plan = planner.plan(module, DEFAULT_SHARDERS)
        except PlannerError as error:
            json.dump({"refused": str(error).strip().splitlines()[0]}, sys.stdout)
            return
        seconds.append(time.perf_counter() - start)
        signal.setitimer(signal.ITIMER_REAL, 0)
    median = sorted(seconds)[len(seconds) // 2]
    json.dump({"seconds": median, "shards": _shards(plan)}, sys.stdout)


def _module(tables: list[dict[str, Any]]) -> torch.nn.Module:
    configs = [
        EmbeddingBagConfig(
            name=table["name"],
            num_embeddings=table["rows"],
            embedding_dim=table["dim"],
            feature_names=[f"{table['name']}:{i}" for i in range(len(table["pooling_factors"]))],
            data_type=DataType.INT8,
        )
        for table in tables
    ]
    # Scale and bias apart, so that columns are the table's, not those of its stored bytes.
    bags = EmbeddingBagCollection(
        configs,
        is_weighted=False,
        device=torch.device("meta"),
        quant_state_dict_split_scale_bias=True,
    )
    return torch.nn.ModuleDict({"bags": bags})


def _planner(request: dict[str, Any]) -> EmbeddingShardingPlanner:
    batch = request["batch"]
    # TorchRec counts bytes a millisecond.
    topology = Topology(
        world_size=request["ranks"],
        compute_device="cuda",
        hbm_cap=request["memory_bytes"],
        hbm_mem_bw=request["memory_bandwidth"] / 1000,
        hbm_to_ddr_mem_bw=request["host_bandwidth"] / 1000,
        intra_host_bw=request["peer_bandwidth"] / 1000,
    )
    constraints = {
        table["name"]: ParameterConstraints(
            sharding_types=SHARDING_TYPES[request["search"]],
            compute_kernels=KERNELS,
            pooling_factors=table["pooling_factors"],
        )
        for table in request["tables"]
    }
    estimators = [
        EmbeddingPerfEstimator(topology=topology, constraints=constraints, is_inference=True),
        EmbeddingStorageEstimator(topology=topology, constraints=constraints, is_inference=True),
    ]
    return EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch,
        constraints=constraints,
        enumerator=EmbeddingEnumerator(
            topology=topology, batch_size=batch, constraints=constraints, estimator=estimators
        ),
        storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
        stats=NoopEmbeddingStats(),
        debug=False,
    )


def _shards(plan: ShardingPlan) -> list[tuple[str, int, int, int, int, int]]:
    """Table, rank, first and last row, first and last column of every shard."""
    shards = []
    for name, parameter in plan.plan["bags"].items():
        parts = parameter.sharding_spec.shards
        for rank, part in zip(parameter.ranks, parts, strict=True):
            (row, column), (rows, columns) = part.shard_offsets, part.shard_sizes
            shards.append((name, rank, row, row + rows, column, column + columns))
    return shards


if __name__ == "__main__":
    main()
