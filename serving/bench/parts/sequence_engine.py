"""Times of a ranking request with a history on one core: sent once, or with every candidate."""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from serving.bench.load.cores import one_core
from serving.bench.parts.machine_limit import MatrixProducts, RowGather, random_products
from serving.bench.turns import Parts, Turns, timed
from serving.bench.workloads.sequence_models import DIM, MatrixProduct, SequenceModel
from serving.host.malloc import keep_freed_memory
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import Model, open_model
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.precision import Precision

_ONCE, _EACH, _EAGER = "once", "each", "eager"
_PRODUCTS, _COPIES = "products", "copies"
_WARM_CALLS = 3


def measure_sequences(
    workload: SequenceModel,
    *,
    precision: Precision,
    rows: int,
    history: int,
    candidates: int,
    turns: Turns,
) -> tuple[dict[str, float], Precision]:
    """Publish the model in a temporary folder and measure it beside torch and the limit.

    Returns figures, and the precision of the products that run:
        once_seconds: the history sent and computed once.
        each_seconds: the history sent and computed with every candidate.
        eager_seconds: the trained module in eager torch, fp32, with every candidate.
        product_seconds: only the matrix products.
        copy_seconds: only the gather of the rows, from memory of 2 MiB pages.
        over_per_candidate, over_eager: speed of `once` over that of the others.
        limit_fraction: the machine's limit, products and copies, over the seconds of `once`.
    """
    spec = workload.spec(rows=rows, history=history, precision=precision)
    tower = workload.tower(history)
    weight = nn.Embedding(rows, DIM)
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        keep_freed_memory()
        with one_core(), torch.inference_mode(False):
            path = publish(
                spec, {"item": weight}, tower, Path(folder), progress=turns.progress
            ).path
        with one_core(), torch.inference_mode():
            model = open_model(path, verify=False, progress=turns.progress)
            model.map_pages()
            generator, has_ages = np.random.default_rng(0), bool(spec.sequence_numbers)

            def drawn(*, once: bool) -> ModelInput:
                return workload.request(spec, generator, candidates, history, once=once)

            def gathered() -> Parts:
                return gather.timed([generator.integers(0, rows, history + candidates)])

            running = precision if model.products is None else model.products.running
            counts, products = _products(workload.products(history, candidates), running)
            gather = RowGather((rows,), RowFormat.INT8.row_bytes(DIM), huge_pages=True)
            calls: dict[str, Callable[[], Parts]] = {
                _ONCE: lambda: _ours(model, drawn(once=True)),
                _EACH: lambda: _ours(model, drawn(once=False)),
                _EAGER: lambda: _eager(tower, weight, drawn(once=False), has_ages),
                _PRODUCTS: products,
                _COPIES: gathered,
            }
            for call in calls.values():
                for _ in range(_WARM_CALLS):
                    call()
            found = turns.medians(calls)
    times = zip(counts, products.seconds(found.pop(_PRODUCTS)), strict=True)
    product_seconds = sum(count * of_one for count, of_one in times)
    once, each, eager, copies = (found[name]["seconds"] for name in (_ONCE, _EACH, _EAGER, _COPIES))
    figures = {
        "over_per_candidate": each / once,
        "limit_fraction": (product_seconds + copies) / once,
        "over_eager": eager / once,
        "once_seconds": once,
        "each_seconds": each,
        "eager_seconds": eager,
        "product_seconds": product_seconds,
        "copy_seconds": copies,
    }
    return figures, running


def _ours(model: Model, request: ModelInput) -> Parts:
    return timed(lambda: run_batch(model, [request]))


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
) -> tuple[list[int], MatrixProducts]:
    """Different products, and how often each is computed."""
    generator = torch.Generator().manual_seed(0)
    counts: Counter[MatrixProduct] = Counter()
    for one in products:
        counts[one] += one.times if one.has_weight else 1
    ways = MatrixProducts([_ways_of(one, precision, generator) for one in counts])
    return list(counts.values()), ways


def _ways_of(
    one: MatrixProduct, precision: Precision, generator: torch.Generator
) -> list[Callable[[], object]]:
    if one.has_weight:
        return random_products(one.rows, one.inner, one.columns, precision, generator)
    left = torch.randn(one.times, one.rows, one.inner, generator=generator)
    right = torch.randn(one.times, one.inner, one.columns, generator=generator)
    out = torch.empty(one.times, one.rows, one.columns)
    return [lambda: torch.bmm(left, right, out=out)]
