"""Runs a version's batch sizes before it serves, and measures their costs."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from time import monotonic, thread_time

from kernels.wording import counted
from serving.errors import DeadlineError
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import Model
from sharded_infer.errors import RequestError, ShardedInferError, ShardHostError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.progress import Progress, no_progress
from sharded_infer.samples.record import (
    RecordedRequest,
    RecordFile,
    local_record,
    record_files,
    recorded_requests,
)

_log = logging.getLogger("sharded_infer")
# Batches whose cost is measured, until one takes longer than the following limit.
_MEASURED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_LONGEST_MEASURED_SECONDS = 0.25
# Time for further rounds: a large tower's sizes differ by more than its noise.
_MEASURED_SECONDS = 0.025
_FEWEST_ROUNDS, _MOST_ROUNDS = 1, 7
_A_FEW = (1, 16, 256)
# Of a recording.
_MOST_RECORDED, _MOST_RECORDED_FILES, _RECORDED_SECONDS = 1000, 8, 10.0


def measure_costs(
    model: Model,
    max_batch: int,
    progress: Progress = no_progress,
    *,
    known: Mapping[int, float] | None = None,
) -> Mapping[int, float]:
    """Runs every padded batch size up to `max_batch`, and measures some of them.

    The first run of a size compiles its kernels. The fastest of several runs counts, because other
    work of the machine only adds time.

    Args:
        known: costs of a model with the same tower and table shapes that this process has run. Its
            kernels exist, so only a few sizes run once.
    """
    if known is not None:
        return _run_a_few(model, known, progress)
    # By the work that a batch counts for.
    costs: dict[int, float] = {}
    sizes = model.engine.run_sizes(min(max_batch, max(_MEASURED_BATCHES)))
    everything = generate_samples(model.spec, sizes[-1])
    batches = sorted({*sizes, *(one for one in _MEASURED_BATCHES if one < sizes[-1])})
    for done, batch in enumerate(batches, start=1):
        samples = everything.samples(0, batch)
        seconds = _timed(model, samples)
        if batch in _MEASURED_BATCHES:
            rounds = min(_MOST_ROUNDS, max(_FEWEST_ROUNDS, int(_MEASURED_SECONDS / seconds)))
            costs[model.work.units(samples)] = min(
                seconds, *(_timed(model, samples) for _ in range(rounds))
            )
        if seconds > _LONGEST_MEASURED_SECONDS:
            break
        progress("warming up", done, len(batches))
    return costs


def run_recorded(model: Model, record: str) -> None:
    """Runs the latest requests of a recording, which bring their rows into memory.

    A recording that cannot be read, has none of this model, or has some that the version refuses,
    is logged.
    """
    started, count, refusal = monotonic(), 0, ""
    try:
        with local_record(record, model.name, _MOST_RECORDED_FILES) as folder:
            files = sorted(record_files(folder, model.name), key=lambda file: file.hour)
            latest = chain(*(_last(file) for file in files[: -_MOST_RECORDED_FILES - 1 : -1]))
            for request in islice(latest, _MOST_RECORDED):
                try:
                    run_batch(model, model.read(request.inputs))
                    count += 1
                except RequestError as error:
                    refusal = str(error)
                if monotonic() - started > _RECORDED_SECONDS:
                    break
    except (ShardedInferError, OSError) as error:
        refusal = str(error)
    what = f"{model.name} version {model.version}: warmed with {counted(count, 'recorded request')}"
    if refusal:
        _log.warning("%s: %s", what, refusal)
    else:
        _log.info("%s", what)


def _last(file: RecordFile) -> Iterator[RecordedRequest]:
    """The last requests of a file, from the last one on."""
    yield from reversed(deque(recorded_requests([file]), _MOST_RECORDED))


def warm_thread(model: Model) -> None:
    """Runs one sample on the calling thread, to create the thread-local state of libraries.

    A server has tens of threads, and each runs every version. A front's thread starts even where
    shard hosts are late or lost: the next batch calls them again.
    """
    try:
        run_batch(model, generate_samples(model.spec, 1))
    except (DeadlineError, ShardHostError) as error:
        _log.warning("a thread begins before it has scored: %s", error)


def _run_a_few(model: Model, known: Mapping[int, float], progress: Progress) -> Mapping[int, float]:
    sizes = [batch for batch in _A_FEW if batch <= max(known)]
    for done, batch in enumerate(sizes, start=1):
        run_batch(model, generate_samples(model.spec, batch))
        progress("warming up", done, len(sizes))
    return known


def _timed(model: Model, samples: ModelInput) -> float:
    # Processor time, unless devices do the work: a version that is loaded beside requests often has
    # to wait.
    clock = monotonic if model.engine.waits else thread_time
    started = clock()
    run_batch(model, samples)
    return clock() - started
