"""`bench engine` of DLRM-v2 on one core: our engine, TorchRec's, and the machine's limit.

Every call draws new requests, so that no variant reads rows that the one before left in the cache.
"""

import resource
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import torch
from torch import nn

from kernels.machine import machine
from kernels.row_format import RowFormat
from serving.bench.parts.installed_torchrec import INSTALL, torchrec_is_installed
from serving.bench.parts.machine_limit import random_products, row_gather, timed_products
from serving.bench.turns import Parts, Turns, one_core
from serving.bench.workloads.dlrm_v2 import (
    DIM,
    IDS_OF_A_BAG,
    USER_FEATURES,
    ids_of,
    one_user,
)
from serving.bench.workloads.requests import request_message, response_message
from serving.bench.workloads.workload import Inputs, Workload
from serving.commands.bench.report import TEXT, Report, times
from serving.commands.lazy_group import load_by_name
from serving.host.malloc import keep_freed_memory
from serving.protocol.predict_request import SentMessage
from serving.protocol.readers.input_reader import InputReader
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import InternalError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.specs.precision import Precision

_STAGES = ("decode", "lookup", "tower", "encode")
_WHOLE_CORE = 0.97  # an idle machine leaves this much of a core, or more
_LEAST_CALLS = 3  # of a variant in a round
_PAGE_BYTES = 4096
_WHOLE, _FAULTS = "whole", "minor faults"
_EXPANDED, _SHARED = "one user, expanded", "one user, shared"
_GATHER, _GATHER_4K = "gather, 2 MiB", "gather, 4 KiB"
_TORCHREC, _TORCHREC_BF16 = "TorchRec", "TorchRec, bf16"


def bench_dlrm(
    workload: Workload,
    *,
    precisions: Sequence[Precision],
    memory: TableMemory,
    pairs: int,
    turns: Turns,
) -> Report:
    """Measure the model in some precisions of its tower, beside its peers and the limit.

    Turns include drawing requests. The file has the figures of the fastest precision, and all in
    `towers`.
    """
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        keep_freed_memory()
        with one_core(), torch.inference_mode():
            ours: dict[Precision, _Ours] = {}
            for precision in dict.fromkeys(precisions):
                own = replace(workload, precision=precision)
                path = own.publish(Path(folder), turns.progress)
                model = open_model(path, memory=memory, verify=False, progress=turns.progress)
                model.map_pages(turns.progress)
                ours[precision] = _Ours(model, pairs)
            measured = _measure(workload, ours, pairs, turns)
    user, towers = measured["one_user"], measured["towers"]
    faults = (f"{run['minor_faults_a_request']:g} ({one})" for one, run in towers.items())
    notes = [
        f"\none user: {user['user_features']} of 26 features, {user['user_lookups_a_pair']} of 214 "
        f"lookups a pair are the user's: {user['gain']:.2f} times as fast said once",
        f"minor page faults a request: {', '.join(faults)}",
        f"products of our towers: {'; '.join(one.products.text for one in ours.values())}\n",
        f"{workload.name}, tables cut to {max(workload.rows):,} rows, {workload.distribution} ids, "
        f"{pairs} pairs a request, {measured['huge_page_share']:.0%} of our tables in 2 MiB pages; "
        "one core",
    ]
    if measured["core_share"] < _WHOLE_CORE:
        notes.append(
            f"this process had {measured['core_share']:.0%} of the core: others ran there too, and "
            "the figures are too slow"
        )
    if measured["torchrec_refusal"] is not None:
        notes.append(measured["torchrec_refusal"])
    return Report(
        [
            ("", TEXT), ("ms a request", times(1e3, ".3g")), ("pairs/s", ",.0f"),
            ("limit's share", ".2f"),
        ],
        _rows(measured),
        notes,
        {
            "workload": workload.name,
            "max_rows": max(workload.rows),
            "ids": workload.distribution,
            "memory": memory,
            **measured,
        },
    )  # fmt: skip


def _rows(measured: dict[str, Any]) -> Iterator[tuple[str, float | None, float | None, object]]:
    """Name, seconds and pairs a second of whole requests and their parts, and the limit's share."""
    pairs, user = measured["pairs"], measured["one_user"]
    for precision, run in measured["towers"].items():
        stages, limit = run["stages"], run["limit"]
        for stage, seconds in stages.items():
            yield f"  {stage}", seconds, None, None
        computing, whole = stages["lookup"] + stages["tower"], run["whole_seconds"]
        ours, running = f"ours, {precision}", run["products"]["running"]
        yield f"{ours}, message to response", whole, pairs / whole, run["whole_limit_fraction"]
        yield f"{ours}, lookup and tower", computing, pairs / computing, run["limit_fraction"]
        yield f"  matrix products, {running}", limit["matrix_seconds"], None, None
        yield f"limit, {precision}", limit["seconds"], pairs / limit["seconds"], 1.0
    gathers = measured["limit"]
    yield "  gather, 2 MiB pages (in the limits)", gathers["gather_seconds"], None, None
    yield "  gather, 4 KiB pages", gathers["gather_4k_seconds"], None, None
    for name, kind in (("TorchRec", "default"), ("TorchRec, bf16", "bf16")):
        rate = measured[f"torchrec_{kind}_pairs_per_second"]
        yield name, rate and pairs / rate, rate, None
    for name, kind in (("for every pair", "expanded"), ("once", "shared")):
        seconds = user[f"{kind}_seconds"]
        yield f"one user, its features {name}", seconds, pairs / seconds, None


def _measure(
    workload: Workload, ours: dict[Precision, "_Ours"], pairs: int, turns: Turns
) -> dict[str, Any]:
    # Int8 is the fastest where it is measured.
    ranked = ours.get(Precision.INT8, next(iter(ours.values())))
    generator = torch.Generator().manual_seed(0)
    layers = [one for one in workload.tower().modules() if isinstance(one, nn.Linear)]
    shapes = [(layer.in_features, layer.out_features) for layer in layers]
    drawing = np.random.default_rng(0)

    def on_request(run: Callable[[Inputs], Parts]) -> Callable[[], Parts]:
        return lambda: run(workload.draw(drawing, pairs))

    calls: dict[str, Callable[[], Parts]] = {
        _EXPANDED: on_request(lambda request: ranked(one_user(request, expanded=True))),
        _SHARED: on_request(lambda request: ranked(one_user(request, expanded=False))),
    }
    for precision, one in ours.items():
        calls[f"ours, {precision}"] = on_request(one)
        products = [
            random_products(pairs, *shape, one.products.running, generator) for shape in shapes
        ]
        calls[f"products, {precision}"] = partial(timed_products, products)
    row_bytes = RowFormat.INT8.row_bytes(DIM)
    huge, small = (row_gather(workload.rows, row_bytes, huge_pages=one) for one in (True, False))
    calls[_GATHER] = on_request(lambda request: huge(ids_of(request)))
    calls[_GATHER_4K] = on_request(lambda request: small(ids_of(request)))
    refusal = None if torchrec_is_installed() else f"TorchRec is not installed: {INSTALL}"
    if refusal is None:
        turns.progress("building TorchRec's model", 0, 1)
        with warnings.catch_warnings():
            # From TorchRec's imports.
            warnings.simplefilter("ignore")
            build = load_by_name("serving.bench.parts.torchrec_dlrm:build_torchrec_models")
        default, lowered = build(workload)
        turns.progress("building TorchRec's model", 1, 1)
        calls |= {_TORCHREC: on_request(default.timed), _TORCHREC_BF16: on_request(lowered.timed)}
    for call in calls.values():
        # The first call compiles kernels for its sizes.
        call()
    started, used = perf_counter(), thread_time()
    found = turns.medians(calls, least_calls=_LEAST_CALLS)
    core_share = (thread_time() - used) / (perf_counter() - started)

    def rate(name: str) -> float | None:
        return pairs / found[name]["seconds"] if name in found else None

    gathers = found[_GATHER]["seconds"], found[_GATHER_4K]["seconds"]
    towers = {}
    for precision, one in ours.items():
        layer_seconds = list(found[f"products, {precision}"].values())
        towers[precision] = {
            "products": asdict(one.products),
            **_tower(found[f"ours, {precision}"], pairs, shapes, layer_seconds, *gathers),
        }
    fastest = min(towers, key=lambda precision: float(towers[precision]["whole_seconds"]))
    expanded, shared = found[_EXPANDED][_WHOLE], found[_SHARED][_WHOLE]
    return {
        "pairs": pairs,
        "rounds": turns.rounds,
        "precision": fastest,
        **towers[fastest],
        "torchrec_default_pairs_per_second": rate(_TORCHREC),
        "torchrec_bf16_pairs_per_second": rate(_TORCHREC_BF16),
        "torchrec_refusal": refusal,
        "towers": towers,
        "one_user": {
            "user_features": len(USER_FEATURES),
            "user_lookups_a_pair": sum(IDS_OF_A_BAG[number] for number in USER_FEATURES),
            "expanded_seconds": expanded,
            "shared_seconds": shared,
            "gain": expanded / shared,
        },
        # Processor time over wall-clock time. Below 1, others used the core in between.
        "core_share": core_share,
        "huge_page_share": ranked.model.huge_page_bytes() / ranked.model.table_bytes,
        "kernels": {
            "lookup": dict(ranked.model.engine.backends),
            "instruction_set": machine().class_text,
            "decode": ranked.reader.backend,
        },
    }


def _tower(
    found: Parts,
    pairs: int,
    shapes: Sequence[tuple[int, int]],
    layer_seconds: Sequence[float],
    gather_seconds: float,
    gather_4k_seconds: float,
) -> dict[str, Any]:
    """Our engine with a tower of one precision, seconds a request from message to response.

    Minor faults are 0 if all memory is reused. The limit of lookups and tower on this core are the
    matrix products, and a copy of a request's rows from memory of 2 MiB pages; fractions of it are
    1 at the machine's best. A copy from 4 KiB pages is shown beside it.
    """
    limit = sum(layer_seconds) + gather_seconds
    return {
        "pairs_per_second_per_core": pairs / found[_WHOLE],
        "limit_fraction": limit / (found["lookup"] + found["tower"]),
        "whole_limit_fraction": limit / found[_WHOLE],
        "whole_seconds": found[_WHOLE],
        "stages": {stage: found[stage] for stage in _STAGES},
        "minor_faults_a_request": found[_FAULTS],
        "limit": {
            "seconds": limit,
            "matrix_seconds": sum(layer_seconds),
            "gather_seconds": gather_seconds,
            "gather_4k_seconds": gather_4k_seconds,
            "layers": [
                {"inputs": inputs, "outputs": outputs, "seconds": seconds}
                for (inputs, outputs), seconds in zip(shapes, layer_seconds, strict=True)
            ],
        },
    }


class _Ours:
    def __init__(self, model: Model, pairs: int) -> None:
        if model.products is None:
            raise InternalError("the engine on the host is measured with a model on devices")
        self.model = model
        self.products = model.products
        self.reader = InputReader(model.spec, max_batch=pairs)
        _read_every_page(model)

    def __call__(self, request: Inputs) -> Parts:
        message = request_message(self.model.name, request)
        faults = _minor_faults()
        started = perf_counter()
        header = SentMessage(message).header()
        requested = header.output_positions(self.model.spec.tower.outputs)
        model_input = self.reader.read_message(message)
        decoded = perf_counter()
        execution = run_batch(self.model, model_input)
        executed = perf_counter()
        names = self.model.spec.tower.outputs
        scores = {names[position]: execution.scores[position] for position in requested}
        response_message(self.model.name, self.model.version, scores)
        ended = perf_counter()
        return {
            "decode": decoded - started,
            "lookup": execution.lookup_seconds,
            "tower": execution.tower_seconds,
            "encode": ended - executed,
            _WHOLE: ended - started,
            _FAULTS: _minor_faults() - faults,
        }


def _minor_faults() -> float:
    return float(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt)


def _read_every_page(model: Model) -> None:
    """Look up a row of every page, so that no page is mapped during the measurement."""
    step = _PAGE_BYTES // RowFormat.INT8.row_bytes(DIM)
    ids = [np.arange(0, feature.table.rows, step) for feature in model.spec.features]
    lengths = np.array([[len(one)] for one in ids])
    bags = JaggedBatch(tuple(range(len(ids))), np.concatenate(ids), lengths)
    model.engine.embeddings(ModelInput(1, (bags,), ()))
