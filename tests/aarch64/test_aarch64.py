"""The compiled code on 64-bit ARM: all of it compiles, and its kernels have the bits of x86-64's.

Cross compilers build it, the system's and that of the wheels, and qemu runs it. Their baseline has
NEON there, whose products and sums are fused: lookups and crosses have the bits of AVX2.
"""

import shutil
import struct
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.backends.native import NativeBackend
from kernels.bags import Bags
from kernels.dense_step import ByteLevels, DenseStep
from kernels.fused_tables import FusedTables
from kernels.machine import InstructionSet, instruction_sets
from kernels.row_format import RowFormat
from quant.encoder import encode_integers
from release.toolchain import Processor, environment
from tests.support.lookup_cases import BATCHES, CASES, fill, store

ROOT = Path(__file__).parents[2]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
LIBRARIES = "/usr/aarch64-linux-gnu"
EXTENSIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
    "ext-modules"
]
# `Format` of native/abi/lookup.h and the kinds of run_kernels.cpp.
FORMATS = ("fp32", "fp16", "bf16", "fp8", "int8", "int4", "int2")
LOOKUP, DENSE_STEP, ENCODING = 0, 1, 2

pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None,
    reason=f"{COMPILER} or {EMULATOR} is not there: .ci/run installs both",
)
needs_avx2 = pytest.mark.skipif(
    InstructionSet.AVX2 not in instruction_sets(),
    reason="this machine has no AVX2, whose fused sums ARM's are compared with",
)


def build(
    sources: list[str], arguments: list[str], out: Path, compiler: Sequence[str] = (COMPILER,)
) -> Path:
    command = [*compiler, *arguments]
    for source in sources:
        # C is C, whatever the compiler's name.
        command += ["-x", "c" if source.endswith(".c") else "c++", str(ROOT / source)]
    command += ["-o", str(out)]
    finished = subprocess.run(
        command,
        env=environment(Processor.AARCH64, 0),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return out


@pytest.mark.parametrize("extension", EXTENSIONS, ids=[one["name"] for one in EXTENSIONS])
def test_an_extension_compiles_and_nothing_is_missing(
    extension: dict[str, Any], tmp_path: Path
) -> None:
    arguments = [*extension["extra-compile-args"], "-shared", "-fPIC", "-Wl,--no-undefined"]
    build(extension["sources"], arguments, tmp_path / "library.so")


def test_the_load_generator_compiles(tmp_path: Path) -> None:
    arguments = ["-Inative", "-std=c++17", "-O3", "-shared", "-fPIC", "-ldl"]
    build(["native/load/http2_load.cpp"], arguments, tmp_path / "library.so")


@pytest.fixture(scope="module", params=[COMPILER, Processor.AARCH64.compilers[1]])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [
        "tests/aarch64/run_kernels.cpp",
        "native/lookup/lookup.cpp",
        "native/tower/dense.cpp",
        "native/encode/encode.cpp",
    ]
    arguments = next(e for e in EXTENSIONS if e["name"] == "kernels._native")["extra-compile-args"]
    out = tmp_path_factory.mktemp("aarch64") / "run_kernels"
    return build(sources, arguments, out, request.param.split())


def run(program: Path, cases: list[bytes], expected: list[bytes]) -> None:
    """Runs the cases in one emulated process and compares its results, case by case."""
    finished = subprocess.run(
        [EMULATOR, "-L", LIBRARIES, str(program)],
        input=b"".join(cases),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert len(finished.stdout) == sum(map(len, expected))
    position = 0
    for number, bits in enumerate(expected):
        assert finished.stdout[position : position + len(bits)] == bits, f"case {number}"
        position += len(bits)


def header(*numbers: int) -> bytes:
    return struct.pack("<9q", *numbers, *(0,) * (9 - len(numbers)))


def bits_of(*tensors: Tensor | None) -> bytes:
    return b"".join(
        t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for t in tensors
        if t is not None
    )


def lookup_case(tables: FusedTables, bags: Bags, dtype: torch.dtype) -> bytes:
    column, features = 0, b""
    for offset, dim, mean in zip(tables.byte_offsets, tables.dims, tables.means, strict=True):
        row_bytes = tables.row_format.row_bytes(dim)
        features += struct.pack("<5q", offset, row_bytes, dim, column, mean)
        column += dim
    numbers = header(
        LOOKUP,
        FORMATS.index(tables.row_format.value),
        dtype is torch.bfloat16,
        len(tables.dims),
        bags.lengths.shape[1],
        len(bags.values),
        bags.weights is not None,
        len(tables.memory),
    )
    return numbers + features + bits_of(tables.memory, bags.values, bags.lengths, bags.weights)


@needs_avx2
@pytest.mark.parametrize("row_format", RowFormat)
def test_lookups_have_the_bits_of_avx2(program: Path, row_format: RowFormat) -> None:
    cases, expected = [], []
    for case in CASES.values():
        tables = store(case, row_format)
        backend = NativeBackend(tables, instruction_set=InstructionSet.AVX2)
        for lengths in BATCHES.values():
            for weighted in (False, True):
                bags = fill(tables, lengths, weighted=weighted)
                for dtype in (torch.float32, torch.bfloat16):
                    out = torch.empty(bags.lengths.shape[1], tables.total_dim, dtype=dtype)
                    cases.append(lookup_case(tables, bags, dtype))
                    expected.append(bits_of(backend.pool(bags, out)))
    run(program, cases, expected)


@needs_avx2
def test_every_half_is_read_as_the_processor_reads_it(program: Path) -> None:
    """All 65,536 patterns of fp16 and bf16, subnormal and infinite ones and NaN among them."""
    cases, expected = [], []
    patterns = torch.arange(65_536, dtype=torch.int32).to(torch.int16)
    for row_format in (RowFormat.FP16, RowFormat.BF16):
        memory = patterns.view(torch.uint8)
        tables = FusedTables(memory, row_format, (0,), (64,), (1024,), (False,))
        bags = Bags(torch.arange(64), torch.ones(1, 64, dtype=torch.int64))
        backend = NativeBackend(tables, instruction_set=InstructionSet.AVX2)
        cases.append(lookup_case(tables, bags, torch.float32))
        expected.append(bits_of(backend.pool(bags, torch.empty(64, 1024))))
    run(program, cases, expected)


def dense_cases() -> Iterator[tuple[bytes, bytes]]:
    generator = torch.Generator().manual_seed(0)
    for width in (1, 15, 16, 17, 48, 130):
        values, first, factor = torch.randn(3, 7, width, generator=generator) * 3
        levels = ByteLevels(torch.rand(width, generator=generator) * 10 + 1, 117)
        for kind, low in enumerate((None, torch.bfloat16, levels)):
            one = DenseStep(keep=True, low=low, instruction_set=InstructionSet.AVX2)
            for cross in (None, factor, factor.bfloat16()):
                stepped = one(values, None if cross is None else first, cross)
                of_bf16 = cross is not None and cross.dtype is torch.bfloat16
                numbers = header(DENSE_STEP, 7, width, cross is not None, of_bf16, kind, 117)
                arrays = bits_of(values, None if cross is None else first, cross)
                scale = bits_of(levels.inverse_scale)
                yield numbers + arrays + scale, bits_of(stepped.x, stepped.low)


@needs_avx2
def test_steps_between_products_have_the_bits_of_avx2(program: Path) -> None:
    cases, expected = zip(*dense_cases(), strict=True)
    run(program, list(cases), list(expected))


@pytest.mark.parametrize("row_format", [f for f in RowFormat if f.is_integer])
def test_rows_are_encoded_to_the_same_bytes_with_the_same_errors(
    program: Path, row_format: RowFormat
) -> None:
    cases, expected = [], []
    generator = torch.Generator().manual_seed(0)
    for dim in (1, 2, 3, 5, 15, 16, 17, 33, 100, 128):
        normal = torch.randn(20, dim, generator=generator)
        rows = torch.cat([normal, normal * 1e-7, normal * 5000, torch.zeros(2, dim)])
        encoded = encode_integers(row_format, rows)
        bits, clip = row_format.element_bits, row_format is not RowFormat.INT8
        cases.append(header(ENCODING, bits, clip, len(rows), dim) + bits_of(rows))
        expected.append(
            bits_of(encoded.stored, encoded.squared_errors, encoded.squares, encoded.max_errors)
        )
    run(program, cases, expected)
