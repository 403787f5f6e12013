"""A batch's time on the host."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from sharded_infer.engines.device.batch_memory import EngineShape
from sharded_infer.engines.device.engine_set import Backends, EngineSet
from sharded_infer.engines.device.runtime.runtime import Runtime
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.specs.model_spec import ModelSpec
from tests.gpu_check.dlrm_v2 import empty_tables
from tests.gpu_check.idle_runtime import IdleRuntime

_HOST_RUNS = 200


def host_seconds(
    spec: ModelSpec,
    shape: EngineShape,
    batches: Sequence[ModelInput],
    device: torch.device,
    runtime: Runtime,
) -> dict[int, float]:
    """Seconds of the host for each batch, by its samples, on one thread.

    Devices are idle; the real runtime's calls for one sample, without lookups and tower, are added.
    """
    sample = batches[0].samples(0, 1)
    idle = _of_nothing(spec, device, IdleRuntime(), shape)
    real = _of_nothing(spec, device, runtime, replace(shape, buckets=(1,)))
    calls = _median_seconds(real, sample) - _median_seconds(idle, sample)
    return {batch.batch_size: _median_seconds(idle, batch) + calls for batch in batches}


def _of_nothing(
    spec: ModelSpec, device: torch.device, runtime: Runtime, shape: EngineShape
) -> EngineSet:
    """Engines that only take batches in and bring scores back."""
    backends = Backends(runtime, lambda *_: _NoLookup(), "none")
    # Few rows: nothing reads them.
    cut = replace(spec, tables=tuple(replace(table, rows=1) for table in spec.tables))
    placed = empty_tables(cut, device, runtime)
    return EngineSet(spec, placed, [device], lambda _: _NoTower(), shape=shape, backends=backends)


class _NoLookup:
    def pooled(
        self, values: Tensor, offsets: Tensor, *, out: Tensor, weights: Tensor | None = None
    ) -> None:
        """Nothing."""


class _NoTower:
    output_widths = (None,)
    memory_bytes = 0

    def activation_bytes(self, batch: int) -> int:
        return 0

    def __call__(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        return (embeddings[:, 0],)


def _median_seconds(engines: EngineSet, batch: ModelInput) -> float:
    times = []
    for _ in range(_HOST_RUNS):
        began = perf_counter()
        engines.run(batch)
        times.append(perf_counter() - began)
    return statistics.median(times)
