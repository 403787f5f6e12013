"""Checks, measures and tunes the kernels on a GPU; `--dry-run` tries this script without one.

Stages fail alone: what was measured is written after each, and the exit code says whether anything
failed. Nothing of ours need be built or installed; where g++ is, it compiles what is missing. It
needs torch, Triton, NumPy, pydantic and safetensors.
"""

import argparse
import faulthandler
import importlib
import json
import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_SECONDS = 420.0  # the stages' part of the 8 minutes
_GRACE_SECONDS = 60.0
_STAGES = (
    "environment",
    "ceilings",
    "correctness",
    "towers",
    "plans",
    "engine",
    "lookups",
    "tuning",
)
# Stages where nothing may be left out.
_ALL_IS_CHECKED = ("correctness", "towers", "engine")
# Shares of the time at which a stage begins nothing new.
_ENDS = {"correctness": 0.35, "towers": 0.5, "engine": 0.7, "lookups": 0.88, "tuning": 1.0}


def main() -> int:
    """Runs the stages and writes what they found.

    Returns:
        The exit code: 0 when every stage did its work and every check passed.
    """
    arguments = _arguments()
    if arguments.dry_run:
        # Before Triton is imported.
        os.environ["TRITON_INTERPRET"] = "1"
    sys.path.insert(0, str(ROOT))
    import torch

    if not arguments.dry_run and not torch.cuda.is_available():
        print("gpu-check: no CUDA GPU here; --dry-run tries the script without", file=sys.stderr)
        return 2
    if missing := _missing_package():
        print(f"gpu-check: needs the Python package {missing}", file=sys.stderr)
        return 2
    begin = time.monotonic()
    # A device that hangs must not take what was measured along.
    faulthandler.dump_traceback_later(arguments.seconds + _GRACE_SECONDS, exit=True)
    report: dict[str, Any] = {"dry_run": arguments.dry_run, "failures": []}

    def has_time(stage: str) -> Callable[[], bool]:
        return lambda: time.monotonic() - begin < arguments.seconds * _ENDS[stage]

    def stage(name: str, work: Callable[[], Any]) -> None:
        if arguments.only and name not in arguments.only:
            return
        started = time.monotonic()
        print(f"gpu-check: {name} ...", flush=True)
        try:
            report[name] = work()
        except Exception as error:
            traceback.print_exc()
            report["failures"].append(f"{name}: {type(error).__name__}: {error}")
        report.setdefault("stage_seconds", {})[name] = round(time.monotonic() - started, 1)
        found = report.get(name)
        if isinstance(found, dict):
            report["failures"] += found.get("failures", [])
            if name in _ALL_IS_CHECKED:
                report["failures"] += [f"not checked: {one}" for one in found.get("left_out", [])]
        _write(report, arguments.out)

    device = torch.device("cpu" if arguments.dry_run else "cuda")
    seed = int.from_bytes(os.urandom(4)) if arguments.seed is None else arguments.seed
    torch.manual_seed(seed)
    report["seed"] = seed
    stage("environment", lambda: _environment(device))
    stage("ceilings", lambda: _ceilings(device))
    stage("correctness", lambda: _correctness(device, seed, has_time("correctness")))
    stage("towers", lambda: _towers(device, report, seed, has_time("towers")))
    stage("plans", lambda: _plans(device))
    stage("engine", lambda: _engine(device, seed, has_time("engine")))
    stage("lookups", lambda: _lookups(device, report, has_time("lookups")))
    stage("tuning", lambda: _tuning(device, arguments, has_time("tuning")))
    faulthandler.cancel_dump_traceback_later()
    _print_table(report)
    return 1 if report["failures"] else 0


def _missing_package() -> str | None:
    """A package that some stage needs and is not here: better known now than after minutes."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        if not path.stem.startswith("test_"):
            try:
                importlib.import_module(f"tests.gpu_check.{path.stem}")
            except ModuleNotFoundError as error:
                return error.name
    return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_check", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, interpreted, on a CPU")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="time of all stages")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help=f"of {', '.join(_STAGES)}")
    parser.add_argument("--seed", type=int, help="of the random numbers; another one each time")
    parser.add_argument(
        "--out",
        type=Path,
        nargs="*",
        default=[ROOT / "docs" / "benchmarks-gpu.json"]
        + ([Path(os.environ["OUT"]) / "benchmarks-gpu.json"] if os.environ.get("OUT") else []),
        help="files to write the report to; tile choices go beside the last",
    )
    return parser.parse_args()


def _environment(device: Any) -> dict[str, Any]:
    import torch
    import triton

    from tests.gpu_check.native_build import build_missing

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        # Without them requests are merged by NumPy, which takes most of the host's time.
        "compiled": build_missing(ROOT),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "card": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "cache_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
        }
    return found


def _ceilings(device: Any) -> dict[str, float]:
    from tests.gpu_check.ceilings import measure_ceilings

    return measure_ceilings(device)


def _correctness(device: Any, seed: int, has_time: Callable[[], bool]) -> dict[str, Any]:
    from tests.gpu_check.correctness import check_kernels

    return check_kernels(device, seed, has_time)


def _towers(
    device: Any, report: dict[str, Any], seed: int, has_time: Callable[[], bool]
) -> dict[str, Any]:
    from tests.gpu_check.towers import DLRM_V2, TINY, check_towers

    sizes = TINY if device.type == "cpu" else DLRM_V2
    return check_towers(sizes, device, seed, report.get("ceilings", {}), has_time)


def _plans(device: Any) -> dict[str, Any]:
    from tests.gpu_check.plans import check_plans

    return check_plans(device)


def _engine(device: Any, seed: int, has_time: Callable[[], bool]) -> dict[str, Any]:
    import torch

    from tests.gpu_check.dlrm_v2 import TINY_ENGINE, USUAL
    from tests.gpu_check.engine import measure_engine

    if device.type == "cpu":
        return measure_engine(TINY_ENGINE, device, seed, has_time)
    return measure_engine(USUAL, torch.device("cuda", 0), seed, has_time)


def _lookups(device: Any, report: dict[str, Any], has_time: Callable[[], bool]) -> dict[str, Any]:
    from tests.gpu_check.lookups import TINY, USUAL, measure_lookups

    sizes = TINY if device.type == "cpu" else USUAL
    copy_rate = report.get("ceilings", {}).get("copy_bytes_per_second", math.nan)
    return measure_lookups(sizes, device, copy_rate, has_time)


def _tuning(
    device: Any, arguments: argparse.Namespace, has_time: Callable[[], bool]
) -> dict[str, Any]:
    import torch

    from kernels.gpu.triton_tuning import CHOICES_FILE, read_choices, write_choices
    from kernels.row_format import RowFormat
    from tests.gpu_check.tuner import tune

    is_gpu = device.type == "cuda"
    shapes = ((RowFormat.INT8, 128), (RowFormat.FP16, 128), (RowFormat.INT4, 128))
    best, times = tune(
        shapes if is_gpu else shapes[:1],
        device,
        rows=1_200_000 if is_gpu else 9,
        batch=4096 if is_gpu else 1,
        has_time=has_time,
    )
    choices = read_choices()
    gpu = torch.cuda.get_device_name(device) if is_gpu else "dry run"
    choices[gpu] = choices.get(gpu, {}) | best
    # In the tree they have a place of their own, below.
    if arguments.out and arguments.out[-1].parent != ROOT / "docs":
        write_choices(choices, arguments.out[-1].with_name("triton_choices.json"))
    if is_gpu:
        write_choices(choices, CHOICES_FILE)
    return times


def _write(report: dict[str, Any], paths: list[Path]) -> None:
    for path in paths:
        path.write_text(json.dumps(report, indent=1) + "\n")


def _print_table(report: dict[str, Any]) -> None:
    copy_rate = report.get("ceilings", {}).get("copy_bytes_per_second", 0)
    print(f"\ncopy: {copy_rate / 1e12:.2f} TB/s, read and written")
    print("tower      batch       us  TFLOP/s  of mm  score diff  allowed")
    for line in report.get("towers", {}).get("measured", []):
        print(
            f"{line['precision']:10}{line['batch']:>6}{line['seconds'] * 1e6:>9.1f}"
            f"{line['operations_per_second'] / 1e12:>9.2f}{line['share_of_ceiling']:>7.0%}"
            f"{line['max_score_diff']:>12.2e}{line['allowed_score_diff']:>9.0e}"
        )
    print("engine     batch    pairs/s  write us  copy us  lookup us  tower us  replay us")
    for line in report.get("engine", {}).get("measured", []):
        for offline in line["offline"]:
            stages = line["stages"][str(offline["batch"])]
            names = ("write", "copy", "lookup", "tower", "replay")
            micros = [stages[f"{name}_seconds"] * 1e6 for name in names]
            print(
                f"{line['precision']:10}{offline['batch']:>6}{offline['pairs_per_second']:>11.0f}"
                f"{micros[0]:>10.0f}{micros[1]:>9.0f}{micros[2]:>11.0f}{micros[3]:>10.0f}"
                f"{micros[4]:>11.0f}"
            )
        print(
            f"  within 60 ms at p99: {line['server_within_60_ms']:.0f} pairs/s; "
            f"{line['estimated_bytes'] / 1e9:.2f} GB estimated, "
            f"{(line['taken_bytes'] or 0) / 1e9:.2f} taken"
        )
        for one in line.get("offline_with_another_slot", []):
            rate = one["pairs_per_second"]
            print(f"  another batch in flight, of {one['batch']}: {rate:.0f} pairs/s")
        for one in line["replays"]:
            print(
                f"  batch of {one['batch']}: {one['overhead_seconds'] * 1e6:.0f} us a batch beyond "
                f"the replay's {one['replay_seconds'] * 1e6:.0f}; the host's part on one thread: "
                f"{one['host_seconds'] * 1e6:.0f}"
            )
    print("kernel        format  at bags      ids      batch       us  of copy")
    for line in report.get("lookups", {}).get("measured", []):
        print(
            f"{line['kernel']:14}{line['row_format']:7}{line['alignment']:>3} {line['bags']:10}"
            f"{line['ids']:8}{line['batch']:>6}{line['seconds'] * 1e6:>9.1f}"
            f"{line['share_of_copy']:>8.0%}"
        )
    for kind in ("left_out", "notes"):
        for note in report.get("lookups", {}).get(kind, []):
            print(f"{kind}: {note}")
    checks = report.get("correctness", {})
    print(f"checks: {checks.get('checked')}, left out {len(checks.get('left_out', []))}")
    for failure in report["failures"]:
        print(f"FAILED: {failure}")


if __name__ == "__main__":
    sys.exit(main())
