"""DLRM-v2 on devices: offline and server scenarios, from decoded requests to scores."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.precision import Precision

_REQUESTS = 64
_MERGED = (1, 2, 4, 8)  # requests of a batch, offline
_SHARES = (0.5, 0.7, 0.8, 0.9, 0.95)  # of the best offline rate
_SEED = 7
# For a tower's device: batches in flight, and one that is merged meanwhile.
_THREADS = 3


@dataclass(frozen=True, slots=True)
class DeviceRun:
    """Samples a second by batch size, scenarios at shares of it, and bytes estimated and held.

    `golden_diff` is the largest difference of a golden request's score from fp32.
    """

    offline: dict[int, float]
    server: tuple[ServerFigures, ...]
    memory: tuple[str, ...]
    golden_diff: float

    def within(self, p99_ms: float, pairs: int) -> float:
        """Highest offered rate of samples a second that met a p99; 0 if none did."""
        met = [one for one in self.server if one.latency_ms["p99"] <= p99_ms]
        return max((one.offered_per_second * pairs for one in met), default=0.0)


def measure_devices(
    workload: DlrmV2,
    *,
    precisions: Sequence[Precision],
    topology: str,
    choice: DeviceChoice,
    pairs: int,
    seconds: float,
    progress: Progress,
) -> dict[Precision, DeviceRun]:
    """Publish the model in a temporary folder and measure it on devices.

    Args:
        topology: at least one rank is a GPU.
        choice: its largest batch is replaced.

    Raises:
        PlanError: no rank of the topology is a GPU, or there are too few GPUs.
        CapacityError: a device has too little memory; the message has its name and figures.
        InputError: there is no CUDA device.
    """
    largest = pairs * max(_MERGED)
    choice = DeviceChoice(choice.gpus, choice.simulated, largest)
    found = {}
    for precision in precisions:
        with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
            of_one = workload.in_precision(precision)
            of_one.publish(Path(folder), progress, topologies=(topology,))
            path = Repository(folder).open(workload.name).path
            model = open_model(path, devices=choice, verify=False, progress=progress)
            found[precision] = _measure(of_one, model, pairs, seconds, progress)
    return found


def _measure(
    workload: DlrmV2, model: Model, pairs: int, seconds: float, progress: Progress
) -> DeviceRun:
    if not isinstance(model.engine, DeviceEngine):
        raise PlanError(f"topology {model.plan.topology.name!r}: expected a rank that is a GPU")
    engines = model.engine.set
    threads = _THREADS * len(engines.engines)
    requests = _requests(workload, model, pairs)
    steps, done = len(_MERGED) + len(_SHARES), 0
    offline: dict[int, float] = {}
    for count in _MERGED:
        batches = [
            merge_inputs(requests[first : first + count])
            for first in range(0, len(requests), count)
        ]
        offline[count * pairs] = run_offline(engines.run, batches, threads=threads, seconds=seconds)
        done += 1
        progress("measuring", done, steps)
    best = max(offline.values())
    server = []
    for share in _SHARES:
        server.append(
            run_server(
                engines.run,
                requests,
                rate=share * best / pairs,
                seconds=seconds,
                threads=threads,
                max_batch=pairs * max(_MERGED),
            )
        )
        done += 1
        progress("measuring", done, steps)
    return DeviceRun(
        offline, tuple(server), tuple(model.engine.memory_report()), check_golden(model)
    )


def _requests(workload: DlrmV2, model: Model, pairs: int) -> list[ModelInput]:
    generator = np.random.default_rng(_SEED)
    reader = InputReader(model.spec, max_batch=pairs)
    return [
        reader.read_message(workload.message(workload.draw(generator, pairs)))
        for _ in range(_REQUESTS)
    ]
