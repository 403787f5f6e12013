"""A stored tower program on one device, ready for capture in CUDA graphs."""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sharded_infer.engines.device.tower.graph import (
    check_capturable,
    drop_widenings,
    fuse_activations,
    fuse_crosses,
    move_program,
    weight_bytes,
)
from sharded_infer.engines.device.tower.memory import peak_bytes
from sharded_infer.engines.device.tower.products import allow_tf32, exact_products
from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering.precision import inner_products
from sharded_infer.towers.lowering.tensor_kinds import kinds_of
from sharded_infer.towers.program.int8_linear import INT8_LINEAR
from sharded_infer.towers.program.program import open_program, run_program
from sharded_infer.towers.program.tower_inputs import TowerInputs

# Precisions that devices run; int8 towers run on CPUs only.
DEVICE_PRECISIONS: Final = (Precision.FP32, Precision.TF32, Precision.BF16, Precision.FP16)
_META: Final = torch.device("meta")
# Batches of which libraries take other kernels.
_NAN_ROWS: Final = (1, 2, 256)


class DeviceTower:
    """A tower with its weights on a device.

    A call only starts kernels on the device's current stream, without reading values or waiting:
    the same ones for every batch of one size, so that a CUDA graph can capture it. Inner products
    run in the tower's precision and the last layers in fp32, regardless of torch's global settings.
    A call changes these under a lock, so that one call at a time starts kernels.

    Attributes:
        output_widths: K for each output of shape `[B, K]`, None for `[B]`.
        memory_bytes: bytes of the weights on the device.
    """

    def __init__(
        self,
        path: Path,
        *,
        dense: Mapping[str, int],
        embedding_width: int,
        outputs: Sequence[str],
        device: torch.device,
        precision: Precision,
    ) -> None:
        """Reads a stored program, checks it and moves it to the device.

        Args:
            path: a file of `write_program`; not trusted, none of its code is executed.
            dense: name and width of each dense input, in the program's order.
            embedding_width: width of the program's last input.
            device: a CUDA device, or the CPU for tests, where tf32 is plain fp32.

        Raises:
            TowerError: the program is unsafe, unexpected, int8 or impossible to capture.
        """
        taken = TowerInputs(dense, embedding_width)
        program, _ = open_program(path, taken, outputs)
        _check_precision(program, precision, path)
        inputs = taken.zeros(())
        check_capturable(program, kinds_of(program, inputs), str(path))
        self.device = device
        self.precision = precision
        self._widths = (*dense.values(), embedding_width)
        prepare = partial(_prepared, inputs=inputs, precision=precision)
        plain = copy.deepcopy(program) if self.device.type == "cuda" else None
        self._program = move_program(prepare(program, fuse=True), self.device)
        if plain is not None:
            # A library's fused ReLU may turn NaN into 0; then the unfused program runs instead.
            moved = move_program(prepare(plain, fuse=False), self.device)
            if not loses_no_nan(self._program, moved, self._widths, self.device):
                self._program, moved = moved, self._program
            _free(moved)
        self.memory_bytes = weight_bytes(self._program)
        zeros = taken.zeros((), self.device)
        with exact_products():
            _, self.output_widths = run_program(self._program, zeros, outputs, str(path))

    def __del__(self) -> None:
        program = vars(self).get("_program")
        if program is not None:
            _free(program)

    def __call__(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        """Scores a batch on the device's current stream: fp32 `[B]` or `[B, K]` per output.

        Args:
            dense: fp32 `[B, width]` each, on the device, in the program's order; not checked.
            embeddings: fp32 `[B, embedding_width]`, on the device; not checked.
        """
        with torch.inference_mode(), exact_products():
            # Export may have turned a reshape into a view, which needs contiguous inputs.
            inputs = [tensor.contiguous() for tensor in (*dense, embeddings)]
            result: tuple[Tensor, ...] = self._program(*inputs)
            return result

    def activation_bytes(self, batch: int) -> int:
        """Peak bytes of the tensors that a call allocates, including its results.

        A tensor counts from its operator to its last reader, rounded up to 512 bytes, as in torch's
        CUDA allocator. Not counted: the inputs, workspaces of kernels (cuBLAS has one for each
        stream, 32 MiB on sm_90), and fragmentation.

        Raises TowerError if torch cannot infer an operator's shapes.
        """
        inputs = [torch.empty(batch, width, device=_META) for width in self._widths]
        with exact_products():
            return peak_bytes(move_program(self._program, _META), inputs)


def _free(program: GraphModule) -> None:
    """Frees a program's weights now; its nodes form reference cycles, which delay freeing."""
    vars(program).clear()


def _prepared(
    program: GraphModule,
    *,
    inputs: Sequence[Tensor],
    precision: Precision,
    fuse: bool,
) -> GraphModule:
    """Applies all passes in place; `fuse` also fuses ReLUs into matrix products."""
    products = inner_products(program.graph)
    kinds = kinds_of(program, inputs)
    fused = fuse_activations(program, kinds) if fuse else {}
    drop_widenings(program, kinds)
    fuse_crosses(program, kinds)
    if precision is Precision.TF32:
        allow_tf32(program, [fused.get(product, product) for product in products])
    return program


def loses_no_nan(
    program: nn.Module, plain: nn.Module, widths: Sequence[int], device: torch.device
) -> bool:
    """True if two programs return NaN at the same positions for inputs of only NaN.

    `plain` is the reference, of torch's own operators.
    """
    with torch.inference_mode(), exact_products():
        for rows in _NAN_ROWS:
            inputs = [torch.full((rows, width), math.nan, device=device) for width in widths]
            for output, expected in zip(program(*inputs), plain(*inputs), strict=True):
                if not torch.equal(output.isnan(), expected.isnan()):
                    return False
    return True


def _check_precision(program: GraphModule, precision: Precision, path: Path) -> None:
    has_int8 = any(node.target is INT8_LINEAR for node in program.graph.nodes)
    if precision not in DEVICE_PRECISIONS or has_int8:
        actual = Precision.INT8 if has_int8 else precision
        raise TowerError(
            f"{path}: a tower on a device: expected {', '.join(DEVICE_PRECISIONS)}, got {actual}: "
            "publish the model in another precision, or serve it on CPUs"
        )
