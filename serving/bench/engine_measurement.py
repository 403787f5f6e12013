"""The way of a request through one core, in this process: ours, TorchRec's, the machine's limit.

Every variant gets requests of its own, drawn anew for each call, so that none finds rows in the
cache that the one before has read. Variants take turns in rounds, forwards and backwards; figures
are medians of the rounds' medians. No server and no connection is part of it: `bench serve` has
those.
"""

import statistics
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time

import numpy as np
import torch

from kernels.row_format import RowFormat
from serving.bench.cores import one_core
from serving.bench.dlrm_v2 import DIM, DlrmRequest, DlrmV2
from serving.bench.machine_limit import MatrixProducts, RowGather
from serving.bench.torchrec_planner import INSTALL, torchrec_is_installed
from serving.portable_decoder import parse_request
from serving.request_decoder import RequestDecoder
from serving.request_header import header_of, read_header
from serving.response_encoder import ResponseEncoder
from sharded_infer.batch import JaggedBatch, ModelInput
from sharded_infer.executor import run_batch
from sharded_infer.model import Model, open_model
from sharded_infer.progress import Progress
from sharded_infer.repository import Repository
from sharded_infer.table_memory import TableMemory

STAGES = ("decode", "lookup", "tower", "encode")
_LEAST_CALLS = 3  # of a variant in a round
_PAGE_BYTES = 4096
_OURS, _WHOLE = "ours", "whole"
_MATRIX, _GATHER, _GATHER_4K = "matrix products", "gather, 2 MiB", "gather, 4 KiB"
_TORCHREC, _TORCHREC_BF16 = "TorchRec", "TorchRec, bf16"

# One call on a request; returns the seconds of its parts.
_Variant = Callable[[DlrmRequest], dict[str, float]]


@dataclass(frozen=True, slots=True)
class MachineLimit:
    """The least that lookups and tower can take on this core, seconds a request.

    Attributes:
        layers: inputs and outputs of each of the tower's layers.
        layer_seconds: of each layer's bf16 matrix product.
        gather_seconds: of copying the request's rows from memory of 2 MiB pages.
        gather_4k_seconds: the same from memory of 4 KiB pages; no part of the limit.
    """

    layers: tuple[tuple[int, int], ...]
    layer_seconds: tuple[float, ...]
    gather_seconds: float
    gather_4k_seconds: float

    @property
    def matrix_seconds(self) -> float:
        """All matrix products together."""
        return sum(self.layer_seconds)

    @property
    def seconds(self) -> float:
        """The limit."""
        return self.matrix_seconds + self.gather_seconds


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """Medians, seconds a request.

    Attributes:
        pairs: samples of a request.
        stages: ours, by the names in `STAGES`.
        whole_seconds: ours, from the message to the response.
        limit: the machine's.
        torchrec_seconds: TorchRec's, dense parts in fp32; None where it is not installed.
        torchrec_bf16_seconds: the same with dense parts in bf16.
        torchrec_refusal: why TorchRec was not measured; None where it was.
        lookup_backends: the kernel backend of each row format.
        decode_backend: what reads the messages.
        core_share: processor time over time passed while variants took their turns: below 1, other
            processes had the core in between, and the figures are too slow.
    """

    pairs: int
    stages: dict[str, float]
    whole_seconds: float
    limit: MachineLimit
    torchrec_seconds: float | None
    torchrec_bf16_seconds: float | None
    torchrec_refusal: str | None
    lookup_backends: dict[str, str]
    decode_backend: str
    core_share: float

    @property
    def computing_seconds(self) -> float:
        """Lookups and tower, which is what the limit and TorchRec's seconds are of."""
        return self.stages["lookup"] + self.stages["tower"]

    @property
    def limit_fraction(self) -> float:
        """The limit's time over that of our lookups and tower: 1 would be the machine's best."""
        return self.limit.seconds / self.computing_seconds

    @property
    def whole_limit_fraction(self) -> float:
        """The limit's time over our whole time, messages and all."""
        return self.limit.seconds / self.whole_seconds

    def rate(self, seconds: float | None) -> float | None:
        """Pairs a second at so many seconds a request."""
        return None if seconds is None else self.pairs / seconds


def measure_engine(
    workload: DlrmV2,
    *,
    memory: TableMemory,
    pairs: int,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> EngineMeasurement:
    """Publishes the model in a temporary folder and measures it beside its peers and the limit.

    Args:
        workload: the model.
        memory: where our tables lie.
        pairs: samples of a request.
        rounds: how often each variant takes its turn.
        seconds: of each turn, the drawing of its requests included.
        progress: told what is being done, and how far it is.

    Raises:
        InputError: our kernels were not compiled.
    """
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        workload.publish(Path(folder), progress)
        with one_core(), torch.inference_mode():
            path = Repository(folder).open(workload.name).path
            model = open_model(path, memory=memory, verify=False, progress=progress)
            return _measure(workload, model, pairs, rounds, seconds, progress)


def _measure(
    workload: DlrmV2, model: Model, pairs: int, rounds: int, seconds: float, progress: Progress
) -> EngineMeasurement:
    ours = _Ours(workload, model, pairs)
    products = MatrixProducts(workload.tower(), pairs)
    variants: dict[str, _Variant] = {_OURS: ours, _MATRIX: lambda _: products()}
    row_bytes = RowFormat.INT8.row_bytes(DIM)
    for name in (_GATHER, _GATHER_4K):
        gather = RowGather(workload.rows, row_bytes, huge_pages=name == _GATHER)
        variants[name] = _timed(name, gather.seconds)
    refusal = None if torchrec_is_installed() else f"TorchRec is not installed: {INSTALL}"
    if refusal is None:
        variants |= _torchrec_variants(workload, progress)
    found, core_share = _take_turns(workload, variants, pairs, rounds, seconds, progress)
    limit = MachineLimit(
        layers=products.shapes,
        layer_seconds=tuple(products.layer_seconds(found[_MATRIX])),
        gather_seconds=found[_GATHER][_GATHER],
        gather_4k_seconds=found[_GATHER_4K][_GATHER_4K],
    )
    return EngineMeasurement(
        pairs=pairs,
        stages={stage: found[_OURS][stage] for stage in STAGES},
        whole_seconds=found[_OURS][_WHOLE],
        limit=limit,
        torchrec_seconds=found.get(_TORCHREC, {}).get(_TORCHREC),
        torchrec_bf16_seconds=found.get(_TORCHREC_BF16, {}).get(_TORCHREC_BF16),
        torchrec_refusal=refusal,
        lookup_backends=model.lookup.backends,
        decode_backend=ours.decoder.backend,
        core_share=core_share,
    )


class _Ours:
    """One request from message to response, as `serving.inference` answers it alone."""

    def __init__(self, workload: DlrmV2, model: Model, pairs: int) -> None:
        self._workload = workload
        self._model = model
        self.decoder = RequestDecoder(model.spec, max_batch=pairs)
        self._encoder = ResponseEncoder(model.name, model.version, model.spec.tower.outputs)
        _read_every_page(model)

    def __call__(self, request: DlrmRequest) -> dict[str, float]:
        message = self._workload.message(request)
        started = perf_counter()
        header = read_header(message) or header_of(parse_request(message))
        requested = header.output_positions(self._model.spec.tower.outputs)
        model_input = self.decoder.decode(message)
        decoded = perf_counter()
        [execution] = run_batch(self._model, [model_input])
        executed = perf_counter()
        scores = [execution.scores[position] for position in requested]
        self._encoder.encode(header.request_id, requested, scores)
        ended = perf_counter()
        return {
            "decode": decoded - started,
            "lookup": execution.lookup_seconds,
            "tower": execution.tower_seconds,
            "encode": ended - executed,
            _WHOLE: ended - started,
        }


def _read_every_page(model: Model) -> None:
    """Looks up a row of every page, so that no page is mapped while it is measured."""
    step = _PAGE_BYTES // RowFormat.INT8.row_bytes(DIM)
    ids = [np.arange(0, feature.table.rows, step) for feature in model.spec.features]
    lengths = np.array([[len(one)] for one in ids])
    bags = JaggedBatch(tuple(range(len(ids))), np.concatenate(ids), lengths)
    model.lookup(ModelInput(1, (bags,), ()))


def _torchrec_variants(workload: DlrmV2, progress: Progress) -> dict[str, _Variant]:
    progress("building TorchRec's model", 0, 1)
    with warnings.catch_warnings():
        # Those of TorchRec's own imports.
        warnings.simplefilter("ignore")
        from serving.bench.torchrec_dlrm import build_torchrec_models
    default, lowered = build_torchrec_models(workload)
    progress("building TorchRec's model", 1, 1)
    return {
        _TORCHREC: _timed(_TORCHREC, default.seconds),
        _TORCHREC_BF16: _timed(_TORCHREC_BF16, lowered.seconds),
    }


def _timed(name: str, seconds: Callable[[DlrmRequest], float]) -> _Variant:
    return lambda request: {name: seconds(request)}


def _take_turns(
    workload: DlrmV2,
    variants: dict[str, _Variant],
    pairs: int,
    rounds: int,
    seconds: float,
    progress: Progress,
) -> tuple[dict[str, dict[str, float]], float]:
    """The medians of each variant's parts, and the share of the core that this thread had."""
    generator = np.random.default_rng(0)
    for variant in variants.values():
        # The first call compiles kernels for the sizes that it meets.
        variant(workload.draw(generator, pairs))
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    total, done = rounds * len(variants), 0
    started, used = perf_counter(), thread_time()
    for number in range(rounds):
        for name in list(variants) if number % 2 == 0 else reversed(variants):
            calls: list[dict[str, float]] = []
            until = perf_counter() + seconds
            while perf_counter() < until or len(calls) < _LEAST_CALLS:
                calls.append(variants[name](workload.draw(generator, pairs)))
            turns[name].append(_medians(calls))
            done += 1
            progress("measuring", done, total)
    core_share = (thread_time() - used) / (perf_counter() - started)
    return {name: _medians(of_one) for name, of_one in turns.items()}, core_share


def _medians(calls: list[dict[str, float]]) -> dict[str, float]:
    return {part: statistics.median(call[part] for call in calls) for part in calls[0]}
