"""Estimated memory of a batch size's kernels equals the allocator's figures."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.machine import MAX_INSTRUCTION_SET
from kernels.product import product_dtypes
from tests.sharded_infer.towers.lowering.test_int8 import needs_exact_int8
from tests.support.fresh_process import CHECKOUT

# In a process of its own: kernels are kept for good.
SCRIPT = """
import ctypes, sys, torch
from torch import nn
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.tower_kernels import kernel_bytes
from tests.sharded_infer.towers.stored import Signature, load_back

FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2

class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        # The second and third share their kernels.
        widths = [(96, 256), (256, 256), (256, 256), (256, 64), (64, 1)]
        self.layers = nn.ModuleList(nn.Linear(*width) for width in widths)
    def forward(self, embeddings):
        for layer in self.layers:
            embeddings = torch.relu(layer(embeddings))
        return embeddings.squeeze(1)

torch.set_num_threads(1)
signature = Signature(96)
program = signature.export(Layers(), Precision(sys.argv[1]), [torch.randn(64, 96)])
tower = load_back(program, signature)
tower((), torch.zeros(300, 96))
before = libc.mallinfo2().uordblks
sizes = range(8, 200, 8)
for size in sizes:
    tower((), torch.zeros(size, 96))
print(kernel_bytes(tower.program), (libc.mallinfo2().uordblks - before) / len(sizes))
"""
pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2") or not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="needs oneDNN, and an allocator that says what is in use (glibc 2.33)",
)


def estimated_and_held(precision: str, most: str) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, precision],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {MAX_INSTRUCTION_SET: most},
    )
    estimated, held = map(float, done.stdout.split())
    return estimated, held


@pytest.mark.parametrize(
    "precision", ["fp32", "bf16", pytest.param("int8", marks=needs_exact_int8)]
)
def test_kernels_of_a_size_hold_what_is_estimated(precision: str) -> None:
    estimated, held = estimated_and_held(precision, "baseline")
    # Where the processor has no instructions for bf16, oneDNN's kernels are a third as large.
    flags = Path("/proc/cpuinfo").read_text()
    most = 4.0 if precision == "bf16" and "avx512_bf16" not in flags else 1.25
    assert estimated > 1e6 and 0.75 * held < estimated < most * held


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("int8", torch.int8)])
def test_compiled_products_hold_nothing_for_a_size(precision: str, dtype: torch.dtype) -> None:
    if dtype not in product_dtypes():
        pytest.skip(f"products of {precision} are not compiled for this machine")
    estimated, held = estimated_and_held(precision, "")
    assert estimated == 0 and held < 10_000
