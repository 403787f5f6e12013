"""Rates of quantizing a checkpoint to tables, beside FBGEMM's operator on rows in memory."""

import importlib
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from safetensors.torch import save_file

from serving.bench.turns import Turns, seconds_of
from serving.commands.bench.options import RoundsOption
from serving.commands.bench.report import TEXT, Report, bench_command
from serving.host.malloc import anonymous_bytes
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import ShardedInferError
from sharded_infer.progress import Progress

DIM = 128
FORMATS = ("int8", "int4")
_TABLES = 4
_OPERATOR_ROWS = 2**19  # 256 MiB: beyond any cache
_SAMPLE_SECONDS = 0.01
_COMMAND_SECONDS = 1800


@bench_command
def quantize_command(
    progress: Progress,
    gigabytes: Annotated[
        float, typer.Option(min=0.01, help="Size of the checkpoint, fp32 GB.")
    ] = 2.0,
    rounds: RoundsOption = 5,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the checkpoint and the tables; default: the system's temporary folder."
        ),
    ] = None,
) -> Report:
    """Measure quantization from a checkpoint to tables, beside FBGEMM's operator.

    The checkpoint is random rows of dim 128 in the page cache. The real command reads it in a
    separate process. Its rate includes reading, encoding, errors, hashes and writing, on all cores.
    FBGEMM's operator encodes rows in memory, on the one core that it uses.
    """
    torch.set_num_threads(1)
    rows = max(1, round(gigabytes * 1e9 / (4 * DIM * _TABLES)))
    fp32_bytes = 4 * DIM * _TABLES * rows
    answers: list[tuple[str, int]] = []  # encoder and peak memory
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-", dir=folder) as name:
        home = Path(name)
        weights = _write_checkpoint(home, rows)
        numbers = torch.randn(_OPERATOR_ROWS, DIM, generator=torch.Generator().manual_seed(0))
        target = torch.empty_like(numbers)
        _touch_memory(fp32_bytes)
        # Once unmeasured, which caches the command's own files.
        _run_command(home, weights, rows, FORMATS[0])

        def command_rate(row_format: str, _: int) -> float:
            answer, anonymous = _run_command(home, weights, rows, row_format)
            answers.append((str(answer["encoder"]), anonymous))
            return float(fp32_bytes / answer["seconds"] / 1e9)

        variants = {"copy": partial(_rate, partial(target.copy_, numbers), numbers)}
        for row_format in FORMATS:
            operator = partial(_operator(row_format), numbers)
            variants[f"fbgemm_{row_format}"] = partial(_rate, operator, numbers)
            variants[row_format] = partial(command_rate, row_format)
        rates = Turns(rounds, 0.0, progress).of(variants, "quantizing")
    found = {name: statistics.median(of_one) for name, of_one in rates.items()}
    encoder, peak = answers[0][0], max(anonymous for _, anonymous in answers)
    ratios = {name: found[name] / found[f"fbgemm_{name}"] for name in FORMATS}
    return Report(
        [("format", TEXT), ("GB/s in", ".2f"), ("FBGEMM's operator", ".2f"), ("ratio", ".2f")],
        [(name, found[name], found[f"fbgemm_{name}"], ratios[name]) for name in FORMATS],
        [
            f"checkpoint of {size_text(fp32_bytes)}, encoder {encoder}, copying in memory "
            f"{found['copy']:.2f} GB/s",
            f"peak anonymous memory {size_text(peak)}",
        ],
        {
            "fp32_bytes": fp32_bytes,
            **{f"{name}_gb_per_second": rate for name, rate in found.items()},
            **{f"{name}_ratio": ratio for name, ratio in ratios.items()},
            "peak_anonymous_bytes": peak,
            "encoder": encoder,
        },
    )


def _write_checkpoint(folder: Path, rows: int) -> Path:
    """Write normal fp32 tables `[rows, 128]`, a safetensors file each; return their index."""
    generator = torch.Generator().manual_seed(0)
    files = {f"t{i}": f"t{i}.safetensors" for i in range(_TABLES)}
    for name, file in files.items():
        save_file({name: torch.randn(rows, DIM, generator=generator)}, folder / file)
    index = folder / "weights.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    # Pending writes of the kernel would slow down the next measurement.
    os.sync()
    return index


def _touch_memory(count: int) -> None:
    """Write to memory and free it: a virtual machine's host is slow to allocate it at first."""
    with mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for offset in range(0, count, mmap.PAGESIZE):
            memory[offset] = 1


def _operator(row_format: str) -> Callable[[torch.Tensor], torch.Tensor]:
    # Registers the operators in a third of a second, which other commands save.
    importlib.import_module("fbgemm_gpu")
    operators = torch.ops.fbgemm
    if row_format == "int8":
        return lambda rows: operators.FloatToFused8BitRowwiseQuantized(rows)
    return lambda rows: operators.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 4)


def _rate(run: Callable[[], object], numbers: torch.Tensor, _: int) -> float:
    return numbers.numel() * 4 / 1e9 / seconds_of(run)


def _run_command(
    home: Path, weights: Path, rows: int, row_format: str
) -> tuple[dict[str, Any], int]:
    """The command's JSON output, and its peak of anonymous memory in bytes."""
    spec = home / "model.toml"
    tables = "".join(
        f'[[tables]]\nname = "t{i}"\nrows = {rows}\ndim = {DIM}\n' for i in range(_TABLES)
    )
    spec.write_text(f'name = "bench"\n{tables}[quantization]\nformat = "{row_format}"\n')
    out, printed, errors = home / "out", home / "printed", home / "errors"
    command = [sys.executable, "-m", "serving.cli", "quantize", "--json"]
    command += ["--spec", str(spec), "--weights", str(weights)]
    peak, deadline = 0, time.monotonic() + _COMMAND_SECONDS
    with (
        printed.open("w") as stdout,
        errors.open("w") as stderr,
        # Our own command.
        subprocess.Popen(  # noqa: S603
            [*command, "--out", str(out)], stdout=stdout, stderr=stderr
        ) as process,
    ):
        status = Path(f"/proc/{process.pid}/status")
        # A process that has ended stays there until `poll` has seen it.
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(status))
            if time.monotonic() > deadline:
                process.kill()
                raise ShardedInferError(f"quantize took more than {_COMMAND_SECONDS} s")
            time.sleep(_SAMPLE_SECONDS)
    if process.returncode:
        raise ShardedInferError(f"quantize failed: {errors.read_text().strip()}")
    shutil.rmtree(out)
    return json.loads(printed.read_text()), peak
