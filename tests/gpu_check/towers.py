"""DLRM-v2's tower on a device: its scores in every precision, in a CUDA graph, and its speed."""

import math
import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from sharded_infer.engines.device.tower.device_tower import DEVICE_PRECISIONS, DeviceTower
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.tower import export_tower
from sharded_infer.zoo.dcnv2 import DCNv2
from tests.gpu_check.stage import Report, Stage
from tests.gpu_check.timing import captured, seconds_of
from tests.support.emulated_tf32 import emulated_tf32

_DENSE = 13
# Score differences that rounding explains, for scores spread as by `spread_tower`: some four times
# those of a CPU, where tf32 is emulated.
_ALLOWED = {Precision.FP32: 5e-5, Precision.TF32: 6e-3, Precision.BF16: 5e-2, Precision.FP16: 5e-3}
# A replay starts the kernels of the eager run; a library may add in another order.
_REPLAY = {Precision.FP32: 5e-5, Precision.TF32: 1e-3, Precision.BF16: 1e-2, Precision.FP16: 2e-3}
_MANY = 32  # samples of which one at least shows rounding
_LOGIT_SPREAD = 2.0
_LEAST_SPREAD = 0.2
# Memory that cuBLAS may allocate in a run.
_WORKSPACE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a DCNv2 tower, its embeddings and its batches (samples); the first is scored."""

    features: int
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    crosses: int
    rank: int
    batches: tuple[int, ...]


# MLPerf Inference's DLRM-v2.
DLRM_V2 = Sizes(26, 128, (512, 256, 128), (1024, 1024, 512, 256, 1), 3, 512, (270, 2048, 8192))
TINY = Sizes(4, 8, (16, 8), (32, 16, 1), 2, 4, (33, 5))


@dataclass(frozen=True, slots=True)
class MeasuredTower:
    """One precision of inner products at one batch size.

    Attributes:
        seconds: of one run, replayed from a CUDA graph; weights may stay in the cache.
        operations_per_second: of the matrix products, two for each number and weight.
        share_of_ceiling: of a large matrix product in this precision.
        max_score_diff: from the fp32 scores of the host.
        replay_diff: largest difference of a replay from the run without a graph.
        memory_bytes: of the weights.
        activation_bytes: estimated for this batch.
        activation_peak_bytes: largest allocation on the device; None on a CPU.
    """

    precision: str
    batch: int
    seconds: float
    operations_per_second: float
    share_of_ceiling: float
    max_score_diff: float
    replay_diff: float
    allowed_score_diff: float
    memory_bytes: int
    activation_bytes: int
    activation_peak_bytes: int | None


def run(stage: Stage) -> Report:
    """Score random samples in every precision, beside fp32 on the host, and time the tower.

    On a CPU tf32 is emulated, nothing is captured. Saves and returns measurements, the scores'
    spread, what was left out, and failures.
    """
    sizes, ceilings = TINY if stage.is_dry else DLRM_V2, stage.report.get("ceilings", {})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stage.seed)
        samples = {batch: _samples(sizes, batch) for batch in sizes.batches}
        module = spread_tower(sizes, samples[sizes.batches[0]])
    with torch.inference_mode():
        expected = {batch: module(*given) for batch, given in samples.items()}
    spread = float(expected[sizes.batches[0]].std())
    failures = [] if spread >= _LEAST_SPREAD else [f"towers: scores hardly differ: {spread:.2g}"]
    measured: list[dict[str, object]] = []
    left_out: list[str] = []
    for precision in DEVICE_PRECISIONS:
        if not stage.has_time():
            left_out.append(f"tower, {precision}")
            continue
        try:
            tower = placed_tower(module, sizes, precision, stage.device)
            for batch, given in samples.items():
                ceiling = ceilings.get(f"{precision}_operations_per_second", math.nan)
                found = _measured(tower, given, expected[batch], ceiling, _operations(module))
                measured.append(asdict(found))
                failures += _judged(found)
                stage.save({"measured": measured, "failures": failures})
        except Exception as error:  # the others are measured all the same
            failures.append(f"tower, {precision}: {type(error).__name__}: {error}")
    return {"measured": measured, "spread": spread, "left_out": left_out, "failures": failures}


def spread_tower(sizes: Sizes, given: tuple[Tensor, Tensor] | None = None) -> DCNv2:
    """A tower of random weights whose scores spread as a trained one's, not all near one half.

    They spread on the given samples; None draws some.
    """
    module = DCNv2(
        dense_width=_DENSE,
        feature_dims=[sizes.dim] * sizes.features,
        bottom=sizes.bottom,
        top=sizes.top,
        cross_layers=sizes.crosses,
        cross_rank=sizes.rank,
    ).eval()
    given = given or _samples(sizes, 64)
    linears = [one for one in module.modules() if isinstance(one, nn.Linear)]
    with torch.no_grad():
        for linear in linears:
            # He et al. 2015 (arXiv:1502.01852): outputs are as large as inputs.
            linear.weight.normal_(0, (2 / linear.in_features) ** 0.5)
        for parameter in module.crosses.parameters():
            parameter.mul_(0.5)
        logits = module.logits(*given)
        factor = _LOGIT_SPREAD / logits.std()
        linears[-1].weight.mul_(factor)
        linears[-1].bias.sub_(logits.mean()).mul_(factor)
    return module


def _samples(sizes: Sizes, batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, _DENSE), torch.randn(batch, sizes.features * sizes.dim) / 2


def _operations(module: nn.Module) -> int:
    linears = [m for m in module.modules() if isinstance(m, nn.Linear)]
    return sum(2 * linear.in_features * linear.out_features for linear in linears)


def placed_tower(
    module: DCNv2, sizes: Sizes, precision: Precision, device: torch.device
) -> DeviceTower:
    """The tower on a device, exported and read back as an artifact's."""
    dense, width, outputs = {"dense": _DENSE}, sizes.features * sizes.dim, ("score",)
    program = export_tower(
        module, dense=dense, embedding_width=width, outputs=outputs, precision=precision
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tower.pt2"
        write_program(program, path)
        emulates = precision is Precision.TF32 and device.type == "cpu"
        with emulated_tf32() if emulates else nullcontext():
            return DeviceTower(
                path,
                dense=dense,
                embedding_width=width,
                outputs=outputs,
                device=device,
                precision=precision,
            )


def _measured(
    tower: DeviceTower,
    given: tuple[Tensor, Tensor],
    expected: Tensor,
    ceiling: float,
    operations: int,
) -> MeasuredTower:
    dense, embeddings = (tensor.to(tower.device) for tensor in given)
    batch = len(dense)
    (score,) = tower([dense], embeddings)
    difference = float((score.cpu() - expected).abs().max())
    replayed, peak = score, None
    if tower.device.type == "cuda":
        peak = _allocated(tower, dense, embeddings)
        replayed = _replayed(tower, dense, embeddings)
    seconds = seconds_of([partial(_run, tower, dense, embeddings)], tower.device)
    rate = operations * batch / seconds
    return MeasuredTower(
        precision=str(tower.precision),
        batch=batch,
        seconds=seconds,
        operations_per_second=rate,
        share_of_ceiling=rate / ceiling,
        max_score_diff=difference,
        replay_diff=float((replayed - score).abs().max()),
        allowed_score_diff=_ALLOWED[tower.precision],
        memory_bytes=tower.memory_bytes,
        activation_bytes=tower.activation_bytes(batch),
        activation_peak_bytes=peak,
    )


def _run(tower: DeviceTower, dense: Tensor, embeddings: Tensor) -> None:
    tower([dense], embeddings)


def _allocated(tower: DeviceTower, dense: Tensor, embeddings: Tensor) -> int:
    """Peak of allocated bytes during a run, beyond those before."""
    torch.cuda.synchronize(tower.device)
    before = torch.cuda.memory_allocated(tower.device)
    torch.cuda.reset_peak_memory_stats(tower.device)
    _run(tower, dense, embeddings)
    torch.cuda.synchronize(tower.device)
    return int(torch.cuda.max_memory_allocated(tower.device)) - before


def _replayed(tower: DeviceTower, dense: Tensor, embeddings: Tensor) -> Tensor:
    """Scores of a replay, on inputs that differed at the capture."""
    inputs = [torch.zeros_like(dense), torch.zeros_like(embeddings)]
    found: list[Tensor] = []
    replay = captured(lambda: found.append(*tower(inputs[:1], inputs[1])), tower.device)
    for place, tensor in zip(inputs, (dense, embeddings), strict=True):
        place.copy_(tensor)
    replay()
    torch.cuda.synchronize(tower.device)
    return found[-1].clone()


def _judged(found: MeasuredTower) -> list[str]:
    """Failures of a measurement, including NaN."""
    name = f"tower, {found.precision}, {found.batch} samples"
    failures = []
    if not found.max_score_diff <= found.allowed_score_diff:
        failures.append(
            f"{name}: a score differs by {found.max_score_diff:.2e}, "
            f"{found.allowed_score_diff:g} is allowed"
        )
    is_low = found.precision != Precision.FP32
    if is_low and found.batch >= _MANY and found.max_score_diff < _ALLOWED[Precision.FP32]:
        failures.append(f"{name}: scores are those of fp32: nothing ran in {found.precision}")
    if not found.replay_diff <= _REPLAY[Precision(found.precision)]:
        failures.append(f"{name}: a replay's score differs by {found.replay_diff:.2e}")
    peak = found.activation_peak_bytes
    if peak is not None and peak > 1.05 * found.activation_bytes + _WORKSPACE_BYTES:
        failures.append(f"{name}: {peak} bytes of activations, estimated {found.activation_bytes}")
    return failures
