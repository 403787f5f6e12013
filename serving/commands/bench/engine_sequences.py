"""`bench engine` of towers over a history, sent once or with every candidate, on one core."""

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from serving.bench.parts.machine_limit import random_products, row_gather, timed_products
from serving.bench.turns import Parts, Turns, one_core, timed
from serving.bench.workloads.sequence_models import DIM, MatrixProduct, SequenceModel
from serving.commands.bench.report import TEXT, Report, times
from serving.host.malloc import keep_freed_memory
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import open_model
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.precision import Precision

# So many rows fit no cache.
_MOST_ROWS = 500_000
_PRODUCTS = "products"
_WARM_CALLS = 3


def bench_sequences(
    workload: SequenceModel,
    *,
    max_rows: int,
    precisions: Sequence[Precision],
    history: int,
    candidates: int,
    turns: Turns,
) -> Report:
    """Measure a model in some precisions of its tower."""
    towers: dict[Precision, dict[str, float]] = {}
    running: dict[Precision, Precision] = {}
    for precision in dict.fromkeys(precisions):
        towers[precision], running[precision] = _measure(
            workload, precision, min(max_rows, _MOST_ROWS), history, candidates, turns
        )
    fastest = min(towers, key=lambda precision: towers[precision]["once_seconds"])
    return Report(
        [("", TEXT), ("ms a request", times(1e3, ".3g")), ("of once", ".2f")],
        [
            (name, one[f"{key}_seconds"], one[f"{key}_seconds"] / one["once_seconds"])
            for precision, one in towers.items()
            for name, key in (
                (f"history once, {precision}", "once"),
                (f"history with every candidate, {precision}", "each"),
                ("eager torch, fp32, with every candidate", "eager"),
                (f"matrix products, {running[precision]}", "product"),
                ("copies of rows", "copy"),
            )
        ],
        [f"\n{workload.name}: {history} ids of history, {candidates} candidates, one core"],
        {
            "workload": workload.name,
            "history": history,
            "candidates": candidates,
            "rounds": turns.rounds,
            "precision": fastest,
            **towers[fastest],
            "running": running,
            "towers": towers,
        },
    )


def _measure(
    workload: SequenceModel,
    precision: Precision,
    rows: int,
    history: int,
    candidates: int,
    turns: Turns,
) -> tuple[dict[str, float], Precision]:
    """Figures, and the precision of the products that run.

    Seconds are of histories that are sent and computed once, or with `each` candidate; of the
    trained module in eager torch, fp32, with every candidate; of the matrix products alone; and of
    a gather of the rows, from memory of 2 MiB pages. The limit is products and gather.
    """
    spec = workload.spec(rows=rows, history=history, precision=precision)
    tower = workload.tower(history)
    weight = nn.Embedding(rows, DIM)
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder, one_core():
        keep_freed_memory()
        published = publish(spec, {"item": weight}, tower, Path(folder), progress=turns.progress)
        with torch.inference_mode():
            model = open_model(published.path, verify=False, progress=turns.progress)
            model.map_pages()
            generator, has_ages = np.random.default_rng(0), bool(spec.sequence_numbers)

            def drawn(*, once: bool) -> ModelInput:
                return workload.request(spec, generator, candidates, history, once=once)

            def ours(*, once: bool) -> Parts:
                request = drawn(once=once)
                return timed(lambda: run_batch(model, request))

            running = precision if model.products is None else model.products.running
            counts, products = _products(workload.products(history, candidates), running)
            gather = row_gather((rows,), RowFormat.INT8.row_bytes(DIM), huge_pages=True)
            calls: dict[str, Callable[[], Parts]] = {
                "once": lambda: ours(once=True),
                "each": lambda: ours(once=False),
                "eager": lambda: _eager(tower, weight, drawn(once=False), has_ages),
                "copy": lambda: gather([generator.integers(0, rows, history + candidates)]),
                _PRODUCTS: partial(timed_products, products),
            }
            for call in calls.values():
                for _ in range(_WARM_CALLS):
                    call()
            medians = turns.medians(calls)
    each_product = medians.pop(_PRODUCTS).values()
    seconds = {name: parts["seconds"] for name, parts in medians.items()}
    seconds["product"] = sum(n * each for n, each in zip(counts, each_product, strict=True))
    once = seconds["once"]
    figures = {
        "over_per_candidate": seconds["each"] / once,
        "limit_fraction": (seconds["product"] + seconds["copy"]) / once,
        "over_eager": seconds["eager"] / once,
        **{f"{name}_seconds": value for name, value in seconds.items()},
    }
    return figures, running


def _eager(tower: nn.Module, weight: nn.Embedding, request: ModelInput, has_ages: bool) -> Parts:
    group, samples = request.groups[0], request.batch_size
    ids = torch.from_numpy(group.values)
    length = int(group.lengths[1, 0])

    def score() -> None:
        inputs: dict[str, Tensor] = {}
        history = ids[samples : samples * (1 + length)].view(samples, length)
        inputs["history"] = weight(history)
        inputs["history_lengths"] = torch.from_numpy(group.lengths[1])
        if has_ages:
            bits = group.values[samples * (1 + length) :].astype(np.uint32)
            inputs["age"] = torch.from_numpy(bits.view(np.float32)).view(samples, length, 1)
        tower(**inputs, embeddings=weight(ids[:samples]))

    return timed(score)


def _products(
    products: list[MatrixProduct], precision: Precision
) -> tuple[list[int], list[list[Callable[[], object]]]]:
    """Different products, and how often each is computed."""
    generator = torch.Generator().manual_seed(0)
    counts: Counter[MatrixProduct] = Counter()
    for one in products:
        counts[one] += one.times if one.has_weight else 1
    return list(counts.values()), [_ways_of(one, precision, generator) for one in counts]


def _ways_of(
    one: MatrixProduct, precision: Precision, generator: torch.Generator
) -> list[Callable[[], object]]:
    if one.has_weight:
        return random_products(one.rows, one.inner, one.columns, precision, generator)
    left = torch.randn(one.times, one.rows, one.inner, generator=generator)
    right = torch.randn(one.times, one.inner, one.columns, generator=generator)
    out = torch.empty(one.times, one.rows, one.columns)
    return [lambda: torch.bmm(left, right, out=out)]
