"""Compiler output of the Triton kernels, for GPUs that are not here.

Registers bound how many programs a multiprocessor runs at once, and so how many rows are on their
way: 96 a thread leave room for 21 warps, 104 for 19, 128 for 16. Spills would go through memory.
"""

import itertools
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from kernels.gpu.triton_dense import cross_kernel  # noqa: E402
from kernels.gpu.triton_pooled import pooled_kernel  # noqa: E402
from kernels.gpu.triton_tiles import (  # noqa: E402
    default_choice,
    kernel_format,
    most_registers,
    plan_tiles,
)
from kernels.row_format import RowFormat  # noqa: E402

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
DIM = 128


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def compile_kernel(row_format: RowFormat, capability: int, out: str, **changes: Any) -> Any:
    """Compiles as `TritonLookup` would launch."""
    dims = changes.pop("dims", (DIM,))
    alignment = changes.get("PAYLOAD_ALIGNMENT", 16)
    plan = plan_tiles(row_format, dims, default_choice(alignment))
    constants = {
        "FORMAT": kernel_format(row_format, capability),
        "ELEMENT_BITS": row_format.element_bits,
        "PAYLOAD_ALIGNMENT": alignment,
        "OUT_ALIGNMENT": {"fp32": 4, "bf16": 8}[out],
        "WEIGHTED": False,
        "WIDE_ROWS": plan.wide[0],
        "WIDE_WORDS": plan.wide[1],
        "NARROW_ROWS": plan.narrow[0],
        "NARROW_WORDS": plan.narrow[1],
    } | changes
    types = {
        "memory": "*i32",
        "features": "*i64",
        "values": "*i64",
        "offsets": "*i64",
        "weights": "*fp32",
        "out": f"*{out}",
    }
    names = pooled_kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in names
    }
    source = ASTSource(
        fn=pooled_kernel,
        signature=signature,
        constexprs={name: constants[name] for name in names if name in constants},
        # The addresses of the tables and of the output; as a launch finds out by itself.
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in ("memory", "out")},
    )
    options = {
        "num_warps": plan.warps,
        "maxnreg": most_registers(row_format, capability),
        "enable_fp_fusion": True,
    }
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def resources(compiled: Any, folder: Path) -> dict[str, int]:
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    done = subprocess.run(
        [str(TOOLS / "cuobjdump"), "-res-usage", str(cubin)],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: int(count) for name, count in re.findall(r"(REG|STACK|LOCAL):(\d+)", done.stdout)}


# Each format in each output for one GPU; the other GPUs take turns at the outputs.
VARIANTS = [
    (row_format, capability, out)
    for (index, row_format), capability, (other, out) in itertools.product(
        enumerate(RowFormat), (80, 90, 100), enumerate(("fp32", "bf16"))
    )
    if capability == 90 or (index + other) % 2 == 0
]


@pytest.mark.parametrize(("row_format", "capability", "out"), VARIANTS)
def test_rows_are_loaded_sixteen_bytes_at_once_and_nothing_spills(
    row_format: RowFormat, capability: int, out: str, tmp_path: Path
) -> None:
    compiled = compile_kernel(row_format, capability, out)
    used = resources(compiled, tmp_path)
    assert used["STACK"] == 0 and used["LOCAL"] == 0, used
    assert 0 < used["REG"] <= most_registers(row_format, capability)
    # A 2-bit word has 16 elements: a thread reads two words and no more.
    wide = "v2" if row_format is RowFormat.INT2 else "v4"
    assert f"ld.global.{wide}.b32" in compiled.asm["ptx"]
    # Four fp32 elements a thread are 8 bytes in bf16.
    assert re.search(r"st\.global\.v[24]\.b32", compiled.asm["ptx"])


@pytest.mark.parametrize("row_format", RowFormat)
def test_weighted_lookups_of_unpadded_rows_of_two_widths_do_not_spill(
    row_format: RowFormat, tmp_path: Path
) -> None:
    compiled = compile_kernel(
        row_format, 90, "fp32", PAYLOAD_ALIGNMENT=4, WEIGHTED=True, dims=(DIM, 8)
    )
    assert resources(compiled, tmp_path)["STACK"] == 0
    assert "ld.global.v4.b32" not in compiled.asm["ptx"]


def test_rows_at_two_words_are_loaded_eight_bytes_at_once() -> None:
    compiled = compile_kernel(RowFormat.INT8, 90, "fp32", PAYLOAD_ALIGNMENT=8)
    assert "ld.global.v2.b32" in compiled.asm["ptx"]


@pytest.mark.parametrize(("capability", "conversions"), [(80, 0), (90, 32)])
def test_fp8_is_converted_by_gpus_that_can(capability: int, conversions: int) -> None:
    ptx = compile_kernel(RowFormat.FP8, capability, "fp32").asm["ptx"]
    # Two elements each: 32 of a thread in either loop.
    assert ptx.count("cvt.rn.f16x2.e4m3x2") == conversions


def test_nothing_that_differs_from_batch_to_batch_chooses_a_compilation() -> None:
    for parameter in pooled_kernel.params:
        if not parameter.is_constexpr and parameter.name not in {"memory", "out"}:
            assert parameter.do_not_specialize or parameter.do_not_specialize_on_alignment


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize(("low", "keep"), [("bf16", True), ("bf16", False), ("fp16", True)])
def test_the_pass_between_products_moves_sixteen_bytes_at_once(
    capability: int, low: str, keep: bool, tmp_path: Path
) -> None:
    names = cross_kernel.arg_names
    constants = {"KEEP": keep, "GROUP": 8, "BLOCK": 1024}
    types = {"values": "*fp32", "first": "*fp32", "factor": f"*{low}", "low": f"*{low}"}
    types |= {"out": "*fp32" if keep else f"*{low}", "groups": "i32", "rest": "i32"}
    source = ASTSource(
        fn=cross_kernel,
        signature={name: "constexpr" if name in constants else types[name] for name in names},
        constexprs=constants,
        attrs={
            (names.index(name),): [["tt.divisibility", 16]]
            for name in ("values", "first", "factor", "out", "low")
        },
    )
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": 4, "enable_fp_fusion": True, "maxnreg": 32}
    compiled = triton.compile(source, target=target, options=options)
    used = resources(compiled, tmp_path)
    assert used["STACK"] == 0 and used["LOCAL"] == 0, used
    # 64 warps, all that a multiprocessor holds.
    assert 0 < used["REG"] <= 32
    # Eight elements a thread: two of 16 bytes in fp32, one of 16 in bf16. The rest is moved singly.
    ptx = compiled.asm["ptx"]
    assert ptx.count("ld.global.v4.b32") == 5, ptx
    assert ptx.count("st.global.v4.b32") == (3 if keep else 1), ptx
