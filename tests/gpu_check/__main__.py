"""Checks, measures and tunes the kernels on a GPU; `--dry-run` tries this script without one.

Each stage is a process with a limit: what crashes or hangs takes nothing else along. Figures are
written as they come, and the exit code says whether anything failed. Nothing of ours need be built
or installed: g++ compiles what is missing. It needs torch, Triton, NumPy, pydantic and safetensors.
"""

import argparse
import faulthandler
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu_check.native_build import PACKAGES, build_missing
from tests.gpu_check.summary import summary
from tests.gpu_check.supervision import supervise, write_json
from tests.support.triton_interpreter import interpreter_problem

ROOT = Path(__file__).parents[2]
_SECONDS = 540.0
# Stages in their order, and the seconds after which each is killed.
_LIMITS = {
    "environment": 60.0,
    "ceilings": 30.0,
    "correctness": 120.0,
    "lookups": 90.0,
    "engine": 150.0,
    "towers": 85.0,
    "plans": 60.0,
    "tuning": 100.0,
}
# Their modules, each with a function `run` of a `Stage`.
_MODULES = {name: name for name in _LIMITS} | {"tuning": "tuner"}
_GRACE_SECONDS = 30.0  # of a stage, to import torch
_BEGINS = 0.8  # the share of a limit after which a stage begins nothing new
# Stages that must be complete.
_ALL_IS_CHECKED = ("correctness", "towers", "engine")
_LISTED = f"of {', '.join(_LIMITS)}"
Report = dict[str, Any]
Save = Callable[[Report], None]


def main() -> int:
    """Run the stages and write their figures; return 0 if all were complete and passed."""
    arguments = _arguments()
    if arguments.dry_run:
        # Before Triton is imported.
        os.environ["TRITON_INTERPRET"] = "1"
    if arguments.stage:
        return _run_stage(arguments)
    import torch

    # Not by CUDA: a context here would outlive a stage that breaks its own.
    if not arguments.dry_run and not torch.cuda.device_count():
        print("gpu-check: no CUDA GPU here; --dry-run tries the script without", file=sys.stderr)
        return 2
    if uncompiled := set(PACKAGES) - set(build_missing(ROOT)):
        print(
            f"gpu-check: needs g++ to compile {', '.join(sorted(uncompiled))}, or their _native.so",
            file=sys.stderr,
        )
        return 2
    if missing := _missing_package():
        print(f"gpu-check: needs the Python package {missing}", file=sys.stderr)
        return 2
    if arguments.dry_run and (problem := interpreter_problem()):
        print(f"gpu-check: --dry-run: {problem}", file=sys.stderr)
        return 2
    end = time.monotonic() + arguments.seconds
    seed = int.from_bytes(os.urandom(4)) if arguments.seed is None else arguments.seed
    report: Report = {"dry_run": arguments.dry_run, "seed": seed, "failures": []}
    for name, limit in _LIMITS.items():
        if not arguments.only or name in arguments.only:
            _supervise(name, min(limit, max(0.0, end - time.monotonic())), report, arguments)
    text = summary(report)
    for out in arguments.out:
        out.with_suffix(".md").write_text(text)
    print(f"\n{text}")
    return 1 if report["failures"] else 0


def _supervise(name: str, limit: float, report: Report, arguments: argparse.Namespace) -> None:
    """Run a stage in a process, add its figures to the report, and write that."""
    print(f"gpu-check: {name} ...", flush=True)
    path = arguments.out[-1].with_suffix(f".{name}.json")
    write_json(path, report)
    command = [sys.executable, "-m", "tests.gpu_check", "--stage", name, "--out", str(path)]
    command += ["--seconds", str(limit), "--seed", str(report["seed"])]
    command += ["--dry-run"] if arguments.dry_run else []
    began = time.monotonic()
    problem = supervise(command, limit + _GRACE_SECONDS, ROOT)
    found = json.loads(path.read_text()).get(name)
    path.unlink()
    report.setdefault("stage_seconds", {})[name] = round(time.monotonic() - began, 1)
    if problem:
        report["failures"].append(f"{name}: {problem}")
    if found is not None:
        report[name] = found
        report["failures"] += found.pop("failures", [])
        if name in _ALL_IS_CHECKED:
            report["failures"] += [f"not checked: {case}" for case in found.get("left_out", [])]
    for out in arguments.out:
        write_json(out, report)


def _run_stage(arguments: argparse.Namespace) -> int:
    """Run a stage in this process: read the report so far, and save figures as they come."""
    import torch

    faulthandler.enable()
    began = time.monotonic()
    path: Path = arguments.out[0]
    report: Report = json.loads(path.read_text())
    name, limit = arguments.stage, arguments.seconds
    latest: Report = {}

    def save(found: Report) -> None:
        latest.update(found)
        write_json(path, report | {name: latest})

    def has_time() -> bool:
        return time.monotonic() - began < limit * _BEGINS

    # Only now: Triton must know before whether it interprets.
    from tests.gpu_check.stage import Stage

    device = torch.device("cpu" if arguments.dry_run else "cuda")
    torch.manual_seed(arguments.seed)
    try:
        module = importlib.import_module(f"tests.gpu_check.{_MODULES[name]}")
        save(module.run(Stage(device, arguments.seed, report, has_time, save)))
    except Exception as error:
        traceback.print_exc()
        failure = f"{name}: {type(error).__name__}: {error}"
        save({"failures": [*latest.get("failures", []), failure]})
    return 0


def _missing_package() -> str | None:
    """A missing package that some stage needs: reported now rather than after minutes."""
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
    parser.add_argument("--only", nargs="+", choices=_LIMITS, metavar="STAGE", help=_LISTED)
    parser.add_argument("--seed", type=int, help="of the random numbers; another one each time")
    parser.add_argument(
        "--out",
        type=Path,
        nargs="+",
        default=[ROOT / "docs" / "benchmarks-gpu.json"],
        help="files to write the report to, each with a summary beside it (.md)",
    )
    parser.add_argument("--stage", choices=_LIMITS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
