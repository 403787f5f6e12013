"""A version loaded and ready, and what a server sets for all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic, thread_time

from serving.input_check import InputLimits
from serving.lane import Lane, LanePolicy, Mode
from serving.metrics import VersionMetrics
from serving.predict_encoder import PredictEncoder
from serving.request_decoder import RequestDecoder
from serving.response_encoder import ResponseEncoder
from sharded_infer.batch import ModelInput
from sharded_infer.device.device_choice import DeviceChoice
from sharded_infer.executor import run_batch
from sharded_infer.golden import generate_samples
from sharded_infer.model import Model
from sharded_infer.progress import Progress, no_progress
from sharded_infer.table_memory import TableMemory

# Batches whose cost is measured. None that follows one that took longer is run before it is asked.
_MEASURED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_LONGEST_MEASURED_SECONDS = 0.25
# As many rounds as take so long, at least two: a large tower's sizes differ by more than its noise.
_MEASURED_SECONDS = 0.05
_FEWEST_ROUNDS, _MOST_ROUNDS = 2, 7
_A_FEW = (1, 16, 256)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version loaded and ready, with everything a request needs.

    Attributes:
        model: the version.
        decoder: reads its ModelInfer requests.
        encoder: writes its ModelInfer responses.
        predict_decoder: reads its Predict requests.
        predict_encoder: writes its Predict responses.
        lane: its requests that wait.
        metrics: its metrics.
    """

    model: Model
    decoder: RequestDecoder
    encoder: ResponseEncoder
    predict_decoder: RequestDecoder
    predict_encoder: PredictEncoder
    lane: Lane
    metrics: VersionMetrics


@dataclass(frozen=True, slots=True)
class ServingOverrides:
    """What a server sets for all models, whatever their specs say; None: as the spec says.

    Attributes:
        mode: how requests are put together.
        max_delay_us: microseconds that batched models wait.
        memory: where tables lie.
        devices: what plans for cards are executed on; None: they are refused.
        fixed_slots: batches run side by side are as many as the user says, on devices too.
        limits: what a request may hold beside samples; these no spec says.
    """

    mode: Mode | None = None
    max_delay_us: int | None = None
    memory: TableMemory | None = None
    devices: DeviceChoice | None = None
    fixed_slots: bool = False
    limits: InputLimits = field(default_factory=InputLimits)

    def lane_policy(self, model: Model) -> LanePolicy:
        """How a version's requests are put together."""
        serving = model.spec.serving
        delay_us = serving.max_delay_us if self.max_delay_us is None else self.max_delay_us
        return LanePolicy(
            mode=self.mode or Mode(serving.executor),
            max_batch=serving.max_batch,
            max_delay=delay_us / 1e6,
            by_clock=model.engine.waits,
            device_slots=0 if self.fixed_slots else model.engine.device_slots,
        )


def measure_costs(
    model: Model,
    max_batch: int,
    progress: Progress = no_progress,
    *,
    known: Mapping[int, float] | None = None,
) -> Mapping[int, float]:
    """Runs every size that batches are padded to, and measures some of them.

    The first run of a size is the one that makes its kernels. Of the measured ones the least of
    some runs counts, because whatever else the machine does only adds.

    Args:
        model: what to run.
        max_batch: samples of a request; larger batches are not measured.
        progress: told the sizes that have been run.
        known: costs of a model with the same tower and tables' shapes that this process has run:
            its kernels are there, and a few sizes are run once.
    """
    if known is not None:
        return _run_a_few(model, known, progress)
    costs: dict[int, float] = {}
    sizes = model.engine.run_sizes(min(max_batch, max(_MEASURED_BATCHES)))
    everything = generate_samples(model.spec, sizes[-1])
    batches = sorted({*sizes, *(one for one in _MEASURED_BATCHES if one < sizes[-1])})
    for done, batch in enumerate(batches, start=1):
        samples = everything.samples(0, batch)
        seconds = _timed(model, samples)
        if batch in _MEASURED_BATCHES:
            rounds = min(_MOST_ROUNDS, max(_FEWEST_ROUNDS, int(_MEASURED_SECONDS / seconds)))
            costs[batch] = min(_timed(model, samples) for _ in range(rounds))
        if seconds > _LONGEST_MEASURED_SECONDS:
            break
        progress("warming up", done, len(batches))
    return costs


def _run_a_few(model: Model, known: Mapping[int, float], progress: Progress) -> Mapping[int, float]:
    sizes = [batch for batch in _A_FEW if batch <= max(known)]
    for done, batch in enumerate(sizes, start=1):
        run_batch(model, [generate_samples(model.spec, batch)])
        progress("warming up", done, len(sizes))
    return known


def _timed(model: Model, samples: ModelInput) -> float:
    # Processor time, unless it is devices that work: a version that is loaded beside requests is
    # often made to wait.
    clock = monotonic if model.engine.waits else thread_time
    started = clock()
    run_batch(model, [samples])
    return clock() - started
