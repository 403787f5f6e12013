"""A stored tower program on one device, for CUDA graphs to capture."""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.fx import GraphModule

from sharded_infer.device.device_tower_graph import (
    check_capturable,
    drop_widenings,
    fuse_activations,
    move_program,
    weight_bytes,
    widen_embeddings,
)
from sharded_infer.device.device_tower_memory import peak_bytes
from sharded_infer.device.device_tower_passes import fuse_crosses
from sharded_infer.device.device_tower_products import allow_tf32, exact_products
from sharded_infer.errors import TowerError
from sharded_infer.int8_product import INT8_LINEAR
from sharded_infer.precision import Precision
from sharded_infer.program_kinds import kinds_of
from sharded_infer.tower_precision import inner_products
from sharded_infer.tower_program import open_program, run_program, zero_inputs
from sharded_infer.tower_tf32 import emulate_tf32

__all__ = ["DEVICE_PRECISIONS", "DeviceTower", "loses_no_nan"]

# What a device runs: int8 towers are made for processors.
DEVICE_PRECISIONS: Final = (Precision.FP32, Precision.TF32, Precision.BF16, Precision.FP16)
_META: Final = torch.device("meta")
_NAN_ROWS: Final = 256


class DeviceTower:
    """A tower whose weights lie on a device.

    A call only starts kernels on the device's current stream: it reads no values, waits for
    nothing, and always starts the same kernels for a batch size, so a CUDA graph can capture it.
    Inner products run in the tower's precision and the last layers in fp32, whatever torch's
    switches say; other threads' products are not run while they are changed.

    Attributes:
        device: where it is.
        precision: of its inner products.
        output_widths: for each output K where it is `[B, K]` and None where it is `[B]`.
        memory_bytes: bytes of its weights on the device.
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
        emulate: bool = False,
    ) -> None:
        """Reads a stored program, checks it and puts it on the device.

        Args:
            path: a file of `write_program`; not trusted, none of its code is run.
            dense: name and width of each dense input, in the program's order.
            embedding_width: the width of the program's last input.
            outputs: the names of the program's outputs.
            device: a CUDA device, or a CPU to try it on; there tf32 is plain fp32.
            precision: what the manifest says of the tower.
            emulate: for tf32 on a device that has none: rounds every factor as CUDA devices do.

        Raises:
            TowerError: the program is not safe, not the expected one, an int8 one, or one that no
                CUDA graph can hold; or tf32 is to be emulated for another precision.
        """
        program = open_program(path, dense=dense, embedding_width=embedding_width, outputs=outputs)
        _check_precision(program, precision, path)
        if emulate and precision is not Precision.TF32:
            raise TowerError(f"{path}: only tf32 is emulated, the tower is in {precision}")
        inputs = zero_inputs(dense, embedding_width)
        check_capturable(program, kinds_of(program, inputs), str(path))
        self.device = _numbered(device)
        self.precision = precision
        self._widths = (*dense.values(), embedding_width)
        prepare = partial(_prepared, inputs=inputs, precision=precision, emulate=emulate)
        plain = copy.deepcopy(program) if self.device.type == "cuda" else None
        self._program = move_program(prepare(program, fuse=True), self.device)
        if plain is not None:
            # What a library's kernel makes of NaN behind a product is its own affair.
            moved = move_program(prepare(plain, fuse=False), self.device)
            if not loses_no_nan(self._program, moved, self._widths, self.device):
                self._program, moved = moved, self._program
            _let_go(moved)
        self.memory_bytes = weight_bytes(self._program)
        zeros = zero_inputs(dense, embedding_width, self.device)
        with exact_products():
            _, self.output_widths = run_program(self._program, zeros, outputs, str(path))

    def __del__(self) -> None:
        program = vars(self).get("_program")
        if program is not None:
            _let_go(program)

    def __call__(self, dense: Sequence[Tensor], embeddings: Tensor) -> tuple[Tensor, ...]:
        """Scores a batch on the device's current stream.

        Args:
            dense: fp32 `[B, width]` each, on the device, in the order given.
            embeddings: fp32 or bf16 `[B, embedding_width]`, on the device.

        Returns:
            fp32 `[B]` or `[B, K]` of each output; the inputs are trusted.
        """
        with torch.inference_mode(), exact_products():
            # Export may have turned a reshape into a view, which only contiguous inputs allow.
            inputs = [tensor.contiguous() for tensor in (*dense, embeddings)]
            result: tuple[Tensor, ...] = self._program(*inputs)
            return result

    def activation_bytes(self, batch: int, embeddings: torch.dtype = torch.float32) -> int:
        """The most bytes that a call's own tensors take at once, its results among them.

        Every tensor counts from the operator that makes it to its last reader, rounded up to 512
        bytes as torch's CUDA allocator does. Not counted: the inputs, memory inside an operator's
        kernel (cuBLAS has a workspace for each stream, 32 MiB on sm_90), and what an allocator
        cannot use of its segments.

        Args:
            batch: samples, B.
            embeddings: the dtype they come in.

        Raises:
            TowerError: torch cannot say an operator's shapes.
        """
        dtypes = (*(torch.float32 for _ in self._widths[1:]), embeddings)
        inputs = [
            torch.empty(batch, width, dtype=dtype, device=_META)
            for width, dtype in zip(self._widths, dtypes, strict=True)
        ]
        with exact_products():
            return peak_bytes(move_program(self._program, _META), inputs)


def _let_go(program: GraphModule) -> None:
    """Frees its weights: a graph's nodes refer to each other, and would wait for a collection."""
    vars(program).clear()


def _prepared(
    program: GraphModule,
    *,
    inputs: Sequence[Tensor],
    precision: Precision,
    emulate: bool,
    fuse: bool,
) -> GraphModule:
    """The program as a device runs it, changed in place; `fuse`: with ReLUs in their products."""
    products = inner_products(program.graph)
    if emulate:
        emulate_tf32(program)
    kinds = kinds_of(program, inputs)
    fused = fuse_activations(program, kinds) if fuse else {}
    drop_widenings(program, kinds)
    fuse_crosses(program, kinds)
    if precision is Precision.TF32 and not emulate:
        allow_tf32(program, [fused.get(product, product) for product in products])
    widen_embeddings(program)
    return program


def loses_no_nan(
    program: GraphModule, plain: GraphModule, widths: Sequence[int], device: torch.device
) -> bool:
    """Whether a program gives NaN where another one does, when it is given nothing else.

    Args:
        program: on the device.
        plain: likewise, of torch's own operators.
        widths: of the inputs.
        device: where both are.
    """
    inputs = [torch.full((_NAN_ROWS, width), math.nan, device=device) for width in widths]
    with torch.inference_mode(), exact_products():
        pairs = list(zip(program(*inputs), plain(*inputs), strict=True))
        return all(torch.equal(one.isnan(), other.isnan()) for one, other in pairs)


def _check_precision(program: GraphModule, precision: Precision, path: Path) -> None:
    has_int8 = any(node.target is INT8_LINEAR for node in program.graph.nodes)
    if precision not in DEVICE_PRECISIONS or has_int8:
        found = Precision.INT8 if has_int8 else precision
        raise TowerError(
            f"{path}: a tower on a device: expected {', '.join(DEVICE_PRECISIONS)}, got {found}: "
            "publish the model in another precision, or serve it on CPUs"
        )


def _numbered(device: torch.device) -> torch.device:
    """The device itself, where `cuda` means the current one."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())
