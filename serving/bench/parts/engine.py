"""Times of a request on one core in this process: our engine, TorchRec's, and the machine's limit.

Every call draws new requests, so that no variant reads rows that the one before left in the cache.
Variants take turns in rounds, forwards and backwards; figures are medians of the rounds' medians.
Servers and connections are not part of it, but of `bench serve`.
"""

import resource
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time

import numpy as np
import torch

from kernels.row_format import RowFormat
from serving.bench.load.cores import one_core
from serving.bench.parts.engine_figures import (
    STAGES,
    EngineMeasurement,
    EngineRun,
    MachineLimit,
    RankingRun,
)
from serving.bench.parts.installed_torchrec import INSTALL, torchrec_is_installed
from serving.bench.parts.machine_limit import MatrixProducts, RowGather
from serving.bench.turns import Parts, medians_in_turns
from serving.bench.workloads.dlrm_v2 import USER_FEATURES, DlrmRequest, DlrmV2, one_user
from serving.bench.workloads.dlrm_v2_shape import (
    DIM,
    IDS_OF_A_BAG,
)
from serving.host.malloc import keep_freed_memory
from serving.protocol.infer_writer import InferWriter
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.portable_reader import parse_request
from serving.protocol.request_header import header_of, read_header
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import InternalError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.host_products import HostProducts

_LEAST_CALLS = 3  # of a variant in a round
_PAGE_BYTES = 4096
_WHOLE, _FAULTS = "whole", "minor faults"
_EXPANDED, _SHARED = "one user, expanded", "one user, shared"
_GATHER, _GATHER_4K = "gather, 2 MiB", "gather, 4 KiB"
_TORCHREC, _TORCHREC_BF16 = "TorchRec", "TorchRec, bf16"

# Runs one request and returns the seconds of its parts.
_Variant = Callable[[DlrmRequest], Parts]


def measure_engine(
    workload: DlrmV2,
    *,
    precisions: Sequence[Precision],
    memory: TableMemory,
    pairs: int,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> EngineMeasurement:
    """Publish the model in a temporary folder and measure it beside its peers and the limit.

    A turn of a variant takes `seconds`, including drawing requests, in each round. Raises
    InputError if our kernels were not compiled.
    """
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        keep_freed_memory()
        ours: dict[Precision, _Ours] = {}
        with one_core(), torch.inference_mode():
            for precision in precisions:
                workload.in_precision(precision).publish(Path(folder), progress)
                path = Repository(folder).open(workload.name).path
                model = open_model(path, memory=memory, verify=False, progress=progress)
                model.map_pages(progress)
                ours[precision] = _Ours(workload, model, pairs)
            return _measure(workload, ours, pairs, rounds, seconds, progress)


def _measure(
    workload: DlrmV2,
    ours: dict[Precision, "_Ours"],
    pairs: int,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> EngineMeasurement:
    # Int8 is the fastest where it is measured.
    ranked = ours.get(Precision.INT8, next(iter(ours.values())))
    variants: dict[str, _Variant] = {
        **{f"ours, {precision}": one for precision, one in ours.items()},
        _EXPANDED: lambda request: ranked(one_user(request, expanded=True)),
        _SHARED: lambda request: ranked(one_user(request, expanded=False)),
    }
    products = {
        precision: MatrixProducts(workload.tower(), pairs, one.products.running)
        for precision, one in ours.items()
    }
    for precision, product in products.items():
        variants[f"products, {precision}"] = partial(_measured, product)
    row_bytes = RowFormat.INT8.row_bytes(DIM)
    for name in (_GATHER, _GATHER_4K):
        gather = RowGather(workload.rows, row_bytes, huge_pages=name == _GATHER)
        variants[name] = _timed(name, gather.seconds)
    refusal = None if torchrec_is_installed() else f"TorchRec is not installed: {INSTALL}"
    if refusal is None:
        variants |= _torchrec_variants(workload, progress)
    found, core_share = _take_turns(workload, variants, pairs, rounds, seconds, progress)
    gathers = found[_GATHER][_GATHER], found[_GATHER_4K][_GATHER_4K]
    return EngineMeasurement(
        pairs=pairs,
        runs={
            one: _run(
                found[f"ours, {one}"],
                ours[one].products,
                MachineLimit(
                    products[one].shapes,
                    tuple(products[one].layer_seconds(found[f"products, {one}"])),
                    *gathers,
                ),
            )
            for one in ours
        },
        ranking=RankingRun(
            len(USER_FEATURES),
            sum(IDS_OF_A_BAG[number] for number in USER_FEATURES),
            found[_EXPANDED][_WHOLE],
            found[_SHARED][_WHOLE],
        ),
        torchrec_seconds=found.get(_TORCHREC, {}).get(_TORCHREC),
        torchrec_bf16_seconds=found.get(_TORCHREC_BF16, {}).get(_TORCHREC_BF16),
        torchrec_refusal=refusal,
        lookup_backends=dict(ranked.model.engine.backends),
        decode_backend=ranked.reader.backend,
        core_share=core_share,
        huge_page_share=ranked.model.huge_page_bytes() / ranked.model.artifact.manifest.table_bytes,
    )


def _run(found: Parts, products: HostProducts, limit: MachineLimit) -> EngineRun:
    stages = {stage: found[stage] for stage in STAGES}
    return EngineRun(products, stages, found[_WHOLE], found[_FAULTS], limit)


class _Ours:
    def __init__(self, workload: DlrmV2, model: Model, pairs: int) -> None:
        if model.products is None:
            raise InternalError("the engine on the host is measured with a model on devices")
        self._workload = workload
        self.model = model
        self.products = model.products
        self.reader = InputReader(model.spec, max_batch=pairs)
        self._writer = InferWriter(model.name, model.version, model.spec.tower.outputs)
        _read_every_page(model)

    def __call__(self, request: DlrmRequest) -> Parts:
        message = self._workload.message(request)
        faults = _minor_faults()
        started = perf_counter()
        header = read_header(message) or header_of(parse_request(message))
        requested = header.output_positions(self.model.spec.tower.outputs)
        model_input = self.reader.read_message(message)
        decoded = perf_counter()
        [execution] = run_batch(self.model, [model_input])
        executed = perf_counter()
        scores = [execution.scores[position] for position in requested]
        self._writer.write(header.request_id, requested, scores)
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


def _torchrec_variants(workload: DlrmV2, progress: Progress) -> dict[str, _Variant]:
    progress("building TorchRec's model", 0, 1)
    with warnings.catch_warnings():
        # From TorchRec's imports.
        warnings.simplefilter("ignore")
        from serving.bench.parts.torchrec_dlrm import build_torchrec_models
    default, lowered = build_torchrec_models(workload)
    progress("building TorchRec's model", 1, 1)
    return {
        _TORCHREC: _timed(_TORCHREC, default.seconds),
        _TORCHREC_BF16: _timed(_TORCHREC_BF16, lowered.seconds),
    }


def _measured(measure: Callable[[], Parts], _: DlrmRequest) -> Parts:
    return measure()


def _timed(name: str, seconds: Callable[[DlrmRequest], float]) -> _Variant:
    return lambda request: {name: seconds(request)}


def _take_turns(
    workload: DlrmV2,
    variants: dict[str, _Variant],
    pairs: int,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> tuple[dict[str, Parts], float]:
    """Medians of each variant's parts, and the share of the core that this thread had."""
    generator = np.random.default_rng(0)
    calls = {
        name: partial(_call, workload, one, generator, pairs) for name, one in variants.items()
    }
    for call in calls.values():
        # The first call compiles kernels for its sizes.
        call()
    started, used = perf_counter(), thread_time()
    found = medians_in_turns(
        calls, rounds=rounds, seconds=seconds, least_calls=_LEAST_CALLS, progress=progress
    )
    return found, (thread_time() - used) / (perf_counter() - started)


def _call(workload: DlrmV2, variant: _Variant, generator: np.random.Generator, pairs: int) -> Parts:
    return variant(workload.draw(generator, pairs))
