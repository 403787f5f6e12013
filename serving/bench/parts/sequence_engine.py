"""Times of a ranking request with a history on one core: sent once, or with every candidate.

Variants take turns in rounds, forwards and backwards; figures are medians of the rounds' medians.
Every call has a new request, so that no call reads rows that the one before left in the cache.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from serving.bench.load.cores import one_core
from serving.bench.parts.machine_limit import RowGather, products_of
from serving.bench.turns import Parts, medians_in_turns, seconds_of
from serving.bench.workloads.sequence_models import DIM, MatrixProduct, SequenceModel
from serving.host.malloc import keep_freed_memory
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import Model, open_model
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.progress import Progress
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.precision import Precision

_ONCE, _EACH, _EAGER = "once", "each", "eager"
_SECONDS = "seconds"
_WARM_CALLS = 3


@dataclass(frozen=True, slots=True)
class SequenceMeasurement:
    """Seconds of one request, its lookups and its tower, and the precision of its products.

    Attributes:
        once: the history sent and computed once.
        each: the history sent and computed with every candidate.
        eager: the trained module in eager torch, fp32, with every candidate.
        products: only the matrix products.
        copies: only the gather of the rows, from memory of 2 MiB pages.
    """

    once: float
    each: float
    eager: float
    products: float
    copies: float
    running: Precision

    @property
    def over_per_candidate(self) -> float:
        """Speed of `once` over that of `each`."""
        return self.each / self.once

    @property
    def limit_fraction(self) -> float:
        """The machine's limit, products and copies, over the seconds of `once`."""
        return (self.products + self.copies) / self.once


def measure_sequences(
    workload: SequenceModel,
    *,
    precision: Precision,
    rows: int,
    history: int,
    candidates: int,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> SequenceMeasurement:
    """Publish the model in a temporary folder and measure it beside torch and the limit."""
    spec = workload.spec(rows=rows, history=history, precision=precision)
    tower = workload.tower(history)
    weight = nn.Embedding(rows, DIM)
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        keep_freed_memory()
        with one_core(), torch.inference_mode(False):
            path = publish(spec, {"item": weight}, tower, Path(folder), progress=progress).path
        with one_core(), torch.inference_mode():
            model = open_model(path, verify=False, progress=progress)
            model.map_pages()
            generator, has_ages = np.random.default_rng(0), bool(spec.sequence_numbers)

            def drawn(*, once: bool) -> ModelInput:
                return workload.request(spec, generator, candidates, history, once=once)

            calls: dict[str, Callable[[], float]] = {
                _ONCE: lambda: _ours(model, drawn(once=True)),
                _EACH: lambda: _ours(model, drawn(once=False)),
                _EAGER: lambda: _eager(tower, weight, drawn(once=False), has_ages),
            }
            running = precision if model.products is None else model.products.running
            products = _Products(workload.products(history, candidates), running)
            calls |= {f"product {at}": way for at, way in enumerate(products.calls)}
            gather = RowGather((rows,), RowFormat.INT8.row_bytes(DIM), huge_pages=True)
            calls["gather"] = lambda: gather.seconds_of_ids(
                [np.random.default_rng().integers(0, rows, history + candidates)]
            )
            for call in calls.values():
                for _ in range(_WARM_CALLS):
                    call()
            turns = medians_in_turns(
                {name: partial(_parts, call) for name, call in calls.items()},
                rounds=rounds,
                seconds=seconds,
                progress=progress,
            )
    found = {name: parts[_SECONDS] for name, parts in turns.items()}
    return SequenceMeasurement(
        once=found[_ONCE],
        each=found[_EACH],
        eager=found[_EAGER],
        products=products.seconds(found),
        copies=found["gather"],
        running=running,
    )


def _ours(model: Model, request: ModelInput) -> float:
    return seconds_of(lambda: run_batch(model, [request]))


def _parts(call: Callable[[], float]) -> Parts:
    return {_SECONDS: call()}


def _eager(tower: nn.Module, weight: nn.Embedding, request: ModelInput, has_ages: bool) -> float:
    group, samples = request.groups[0], request.batch_size
    ids = torch.from_numpy(group.values)
    began = perf_counter()
    inputs: dict[str, Tensor] = {}
    length = int(group.lengths[1, 0])
    history = ids[samples : samples * (1 + length)].view(samples, length)
    inputs["history"] = weight(history)
    inputs["history_lengths"] = torch.from_numpy(group.lengths[1])
    if has_ages:
        bits = group.values[samples * (1 + length) :].astype(np.uint32)
        inputs["age"] = torch.from_numpy(bits.view(np.float32)).view(samples, length, 1)
    tower(**inputs, embeddings=weight(ids[:samples]))
    return perf_counter() - began


class _Products:
    """Matrix products, each in all implementations that a tower may use."""

    def __init__(self, products: list[MatrixProduct], precision: Precision) -> None:
        generator = torch.Generator().manual_seed(0)
        self.calls: list[Callable[[], float]] = []
        self._ways: list[tuple[int, range]] = []
        known: dict[MatrixProduct, int] = {}
        for one in products:
            if one not in known:
                known[one] = len(self._ways)
                first = len(self.calls)
                self.calls += _ways_of(one, precision, generator)
                self._ways.append((0, range(first, len(self.calls))))
            times, ways = self._ways[known[one]]
            self._ways[known[one]] = times + (one.times if one.has_weight else 1), ways

    def seconds(self, found: dict[str, float]) -> float:
        return sum(
            times * min(found[f"product {way}"] for way in ways) for times, ways in self._ways
        )


def _ways_of(
    one: MatrixProduct, precision: Precision, generator: torch.Generator
) -> list[Callable[[], float]]:
    if not one.has_weight:
        left = torch.randn(one.times, one.rows, one.inner, generator=generator)
        right = torch.randn(one.times, one.inner, one.columns, generator=generator)
        out = torch.empty(one.times, one.rows, one.columns)
        return [_timed(lambda: torch.bmm(left, right, out=out))]
    left = torch.randn(one.rows, one.inner, generator=generator)
    weight = torch.randn(one.columns, one.inner, generator=generator)
    return [_timed(way) for way in products_of(left, weight, precision)]


def _timed(call: Callable[[], object]) -> Callable[[], float]:
    return lambda: seconds_of(call)
