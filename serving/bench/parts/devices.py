"""DLRM-v2 on devices: offline and server scenarios, from decoded requests to scores."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from serving.bench.parts.device_scenarios import ServerFigures, run_offline, run_server
from serving.bench.workloads.dlrm_v2 import DlrmV2
from serving.protocol.readers.input_reader import InputReader
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.device.device_engine import DeviceEngine
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import PlanError
from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.progress import Progress

_REQUESTS = 64
_MERGED = (1, 2, 4, 8)  # requests of a batch, offline
_SHARES = (0.5, 0.7, 0.8, 0.9, 0.95)  # of the best offline rate
_SEED = 7
# For a tower's device: batches in flight, and one that is merged meanwhile.
_THREADS = 3


def measure_devices(
    workload: DlrmV2,
    choice: DeviceChoice,
    *,
    topology: str,
    pairs: int,
    seconds: float,
    progress: Progress,
) -> dict[str, Any]:
    """Publish the model in a temporary folder and measure it on devices.

    Returns samples a second by batch size, figures of the server at shares of the best of these,
    bytes estimated and held, and a golden request's largest difference from fp32.

    Args:
        choice: its largest batch is replaced.
        topology: at least one rank is a GPU.

    Raises:
        PlanError: no rank of the topology is a GPU, or there are too few GPUs.
        CapacityError: a device has too little memory; the message has its name and figures.
        InputError: there is no CUDA device.
    """
    choice = DeviceChoice(choice.gpus, choice.simulated, pairs * max(_MERGED))
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        path = workload.publish(Path(folder), progress, topologies=(topology,))
        model = open_model(path, devices=choice, verify=False, progress=progress)
        return _measure(workload, model, pairs, seconds, progress)


def _measure(
    workload: DlrmV2, model: Model, pairs: int, seconds: float, progress: Progress
) -> dict[str, Any]:
    if not isinstance(model.engine, DeviceEngine):
        raise PlanError(f"topology {model.plan.topology.name!r}: expected a rank that is a GPU")
    engines = model.engine.set
    threads = _THREADS * len(engines.engines)
    requests = _requests(workload, model, pairs)
    steps = len(_MERGED) + len(_SHARES)
    offline: dict[int, float] = {}
    for count in _MERGED:
        batches = [
            merge_inputs(requests[first : first + count])
            for first in range(0, len(requests), count)
        ]
        offline[count * pairs] = run_offline(engines.run, batches, threads=threads, seconds=seconds)
        progress("measuring", len(offline), steps)
    server: list[ServerFigures] = []
    for share in _SHARES:
        figures = run_server(
            engines.run,
            requests,
            rate=share * max(offline.values()) / pairs,
            seconds=seconds,
            threads=threads,
            max_batch=pairs * max(_MERGED),
        )
        server.append(figures)
        progress("measuring", len(offline) + len(server), steps)
    return {
        "offline_pairs_per_second": offline,
        "server": [asdict(figures) for figures in server],
        "memory": model.engine.memory_report(),
        "golden_diff": check_golden(model),
    }


def _requests(workload: DlrmV2, model: Model, pairs: int) -> list[ModelInput]:
    generator = np.random.default_rng(_SEED)
    reader = InputReader(model.spec, max_batch=pairs)
    return [
        reader.read_message(workload.message(workload.draw(generator, pairs)))
        for _ in range(_REQUESTS)
    ]
