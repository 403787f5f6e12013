from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sharded_infer.engines.device.tower.device_tower import (
    DEVICE_PRECISIONS,
    DeviceTower,
    loses_no_nan,
)
from sharded_infer.engines.device.tower.memory import LiveBytes
from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.tower import Tower, export_tower
from sharded_infer.zoo.registry import build_tower
from tests.support.emulated_tf32 import emulated_tf32

CPU = torch.device("cpu")
Written = Callable[[str, Precision], Path]
FEATURES, DIM = 6, 32
WIDTH = FEATURES * DIM
DENSE = {"dense": 13}
OPTIONS: dict[str, dict[str, object]] = {
    "dlrm": {"bottom": [64, DIM], "top": [96, 64, 1]},
    "dcnv2": {"bottom": [64, DIM], "top": [96, 64, 1], "cross_layers": 3, "cross_rank": 16},
}
# Rounding of fp32 in another order. In tf32 and bf16 that may tip a factor to its other neighbour.
BOUNDS = dict.fromkeys(DEVICE_PRECISIONS, 1e-6) | {Precision.TF32: 1e-4, Precision.BF16: 1e-3}


def zoo_tower(architecture: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return build_tower(
            architecture,
            dense_inputs=DENSE,
            feature_dims=[DIM] * FEATURES,
            options=OPTIONS[architecture],
        )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Exports each tower of the zoo once in each precision."""

    @cache
    def path_of(architecture: str, precision: Precision) -> Path:
        program = export_tower(
            zoo_tower(architecture),
            dense=DENSE,
            embedding_width=WIDTH,
            outputs=("score",),
            precision=precision,
            calibration=[torch.randn(64, 13), torch.randn(64, WIDTH)],
        )
        path = tmp_path_factory.mktemp("towers") / "tower.pt2"
        write_program(program, path)
        return path

    return path_of


def on_cpu(path: Path, precision: Precision) -> DeviceTower:
    return DeviceTower(
        path,
        dense=DENSE,
        embedding_width=WIDTH,
        outputs=("score",),
        device=CPU,
        precision=precision,
    )


def inputs_of(batch: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return (
        [torch.randn(batch, 13, generator=generator)],
        torch.randn(batch, WIDTH, generator=generator),
    )


@pytest.mark.parametrize("precision", DEVICE_PRECISIONS)
@pytest.mark.parametrize("architecture", OPTIONS)
def test_it_scores_as_the_tower_of_processors_does(
    architecture: str, precision: Precision, written: Written
) -> None:
    path = written(architecture, precision)
    emulate = precision is Precision.TF32
    expected = Tower.load(
        path, dense=DENSE, embedding_width=WIDTH, outputs=("score",), tf32=emulate
    )
    with emulated_tf32() if emulate else nullcontext():
        tower = on_cpu(path, precision)
    assert tower.output_widths == expected.output_widths == (None,)
    for batch in (1, 2, 300):
        dense, embeddings = inputs_of(batch)
        (score,) = tower(dense, embeddings)
        assert score.dtype is torch.float32 and score.shape == (batch,)
        (wanted,) = expected(dense, embeddings)
        torch.testing.assert_close(score, wanted, rtol=0, atol=BOUNDS[precision])


class Switches(TorchDispatchMode):
    """Records torch's switches when a product runs, by the product's columns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, str]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if str(func).split(".")[1] in ("linear", "addmm", "_addmm_activation", "bmm"):
            self.seen.append((result.shape[-1], torch.backends.cuda.matmul.fp32_precision))
        return result


def switches() -> tuple[object, ...]:
    matmul = torch.backends.cuda.matmul
    return (
        matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_fp16_accumulation,
    )


def test_tf32_is_allowed_in_inner_products_and_nowhere_else(written: Written) -> None:
    path = written("dlrm", Precision.FP32)
    before = switches()
    found = {}
    for precision in (Precision.TF32, Precision.FP32):
        tower = on_cpu(path, precision)
        with Switches() as seen:
            tower(*inputs_of(4))
        found[precision] = seen.seen
        assert switches() == before
    columns = [64, 32, FEATURES + 1, 96, 64, 1]
    assert found[Precision.FP32] == [(width, "ieee") for width in columns]
    assert found[Precision.TF32] == [
        *((width, "tf32") for width in columns[:-1]),
        (1, "ieee"),
    ]


class Replacing(nn.Module):
    """Makes 0 of NaN in some batches, as some libraries' ReLU does."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, dense: Tensor, embeddings: Tensor) -> tuple[Tensor]:
        found = dense.sum(1) + embeddings.sum(1)
        return (torch.where(found > 0, found, 0.0) if len(dense) == self.rows else found.relu(),)


@pytest.mark.parametrize("rows", [1, 2, 256])
def test_a_program_that_loses_nan_is_told_from_one_that_does_not(rows: int) -> None:
    keeps, loses = Replacing(0), Replacing(rows)
    cpu = torch.device("cpu")
    assert loses_no_nan(keeps, keeps, (3, 4), cpu) and loses_no_nan(loses, loses, (3, 4), cpu)
    assert not loses_no_nan(loses, keeps, (3, 4), cpu)


@pytest.mark.parametrize("precision", DEVICE_PRECISIONS)
def test_nan_in_a_row_is_nan_in_its_score_and_in_no_other(
    precision: Precision, written: Written
) -> None:
    tower = on_cpu(written("dcnv2", precision), precision)
    (dense,), embeddings = inputs_of(3)
    clean = tower([dense], embeddings)[0]
    dense[1, 0] = torch.nan
    (score,) = tower([dense], embeddings)
    assert score.isnan().tolist() == [False, True, False]
    assert torch.equal(score[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("said", [Precision.INT8, Precision.BF16])
def test_int8_towers_are_refused(said: Precision, written: Written) -> None:
    path = written("dcnv2", Precision.INT8)
    with pytest.raises(TowerError, match="expected fp32, tf32, bf16, fp16, got int8"):
        on_cpu(path, said)


def test_its_weights_take_the_bytes_of_their_precision(written: Written) -> None:
    module = zoo_tower("dcnv2")
    last = 64 + 1
    numbers = sum(parameter.numel() for parameter in module.parameters())
    for precision, width in ((Precision.FP32, 4), (Precision.TF32, 4), (Precision.FP16, 2)):
        tower = on_cpu(written("dcnv2", precision), precision)
        assert tower.memory_bytes == (numbers - last) * width + last * 4


@pytest.mark.parametrize("precision", DEVICE_PRECISIONS)
@pytest.mark.parametrize("architecture", OPTIONS)
def test_activations_take_what_was_estimated(
    architecture: str, precision: Precision, written: Written
) -> None:
    tower = on_cpu(written(architecture, precision), precision)
    for batch in (1, 300):
        dense, embeddings = inputs_of(batch)
        weights = list(tower._program.buffers())
        with torch.no_grad(), LiveBytes([*dense, embeddings, *weights]) as live:
            tower(dense, embeddings)
        assert tower.activation_bytes(batch) == live.peak
