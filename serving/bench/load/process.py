"""Generates a load in a separate process on separate processors.

    python -m serving.bench.load.process FOLDER

The folder has the load's settings (`load.json`, `load.npz`), and gets its result (`result.npz`, or
`refusal.txt`). No file is a pickle.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError, ShardedInferError
from serving.bench.load.generator import run_closed, run_open
from serving.bench.load.http_generator import run_http_closed
from serving.bench.load.result import LoadResult
from serving.bench.load.target import Target

_ARRAYS = (
    "scheduled",
    "sent",
    "latency",
    "lag",
    "codes",
    "message_index",
    "response_bytes",
    "connection_calls",
    "reconnects",
)
_NUMBERS = ("began", "seconds", "window_seconds", "ok_in_window", "cpu_share")


@dataclass(frozen=True, slots=True)
class ClosedLoad:
    """The arguments of `run_closed`, which describes them."""

    target: Target
    messages: tuple[bytes, ...]
    connections: int
    concurrency: int
    seconds: float
    deadline_seconds: float | None = None
    warm_up_seconds: float = 0.0
    max_calls: int | None = None
    drain_seconds: float = 5.0
    keep_responses: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class OpenLoad:
    """The arguments of `run_open`, which describes them."""

    target: Target
    messages: tuple[bytes, ...]
    connections: int
    schedule: NDArray[np.float64]
    deadline_seconds: float | None = None
    drain_seconds: float = 5.0
    keep_responses: bool = True


def run_in_process(load: ClosedLoad | OpenLoad, cpus: set[int] | None) -> LoadResult:
    """Generates a load in a separate process.

    Args:
        cpus: processors that it may use; None: those of this process.

    Returns:
        The result of `run_closed` or `run_open`.

    Raises:
        InputError: as these, or the machine lacks the processors.
        ShardedInferError: the process ended without a result.
    """
    with tempfile.TemporaryDirectory(prefix="sharded-infer-load-") as name:
        folder = Path(name)
        _write_load(folder, load, cpus)
        command = [sys.executable, "-m", "serving.bench.load.process", name]
        # A process group of its own: an interrupt is this process's to handle, and kills the load.
        # Not a session: Linux shares cores between sessions, whatever their priorities are.
        process = subprocess.run(  # noqa: S603 - our own command
            command, process_group=0, check=False
        )
        refusal = folder / "refusal.txt"
        if refusal.is_file():
            raise InputError(refusal.read_text())
        if process.returncode != 0:
            raise ShardedInferError(
                f"the load's process ended with exit code {process.returncode}; its error output "
                "is above"
            )
        return _read_result(folder / "result.npz")


def main() -> None:
    """Reads a load from the folder on the command line, generates it, and writes the result."""
    folder = Path(sys.argv[1])
    try:
        _write_result(folder / "result.npz", _run(folder))
    except InputError as error:
        (folder / "refusal.txt").write_text(str(error))


def _run(folder: Path) -> LoadResult:
    request = json.loads((folder / "load.json").read_text())
    cpus, arguments = request["cpus"], request["arguments"]
    if cpus is not None:
        try:
            os.sched_setaffinity(0, cpus)
        except (OSError, ValueError) as error:
            raise InputError(f"cpus: cannot run on {cpus}: {error}") from error
    target = Target(**arguments.pop("target"))
    with np.load(folder / "load.npz", allow_pickle=False) as arrays:
        messages = _split(arrays["messages"], arrays["message_ends"])
        if "schedule" in arrays:
            return run_open(target, messages, schedule=arrays["schedule"], **arguments)
    if target.is_http:
        return run_http_closed(target, messages, **_of_http(arguments))
    return run_closed(target, messages, **arguments)


def _of_http(arguments: dict[str, Any]) -> dict[str, Any]:
    names = ("concurrency", "seconds", "warm_up_seconds", "keep_responses")
    return {name: arguments[name] for name in names}


def _write_load(folder: Path, load: ClosedLoad | OpenLoad, cpus: set[int] | None) -> None:
    arguments: dict[str, Any] = {
        field.name: getattr(load, field.name)
        for field in dataclasses.fields(load)
        if field.name not in {"messages", "schedule"}
    }
    arguments["target"] = dataclasses.asdict(load.target)
    arrays = _joined("messages", "message_ends", load.messages)
    if isinstance(load, OpenLoad):
        arrays["schedule"] = load.schedule
    request = {"cpus": None if cpus is None else sorted(cpus), "arguments": arguments}
    (folder / "load.json").write_text(json.dumps(request))
    np.savez(folder / "load.npz", allow_pickle=False, **arrays)


def _write_result(path: Path, result: LoadResult) -> None:
    arrays = {name: np.asarray(getattr(result, name)) for name in _ARRAYS + _NUMBERS}
    arrays |= _joined("responses", "response_ends", tuple(result.responses.values()))
    arrays["response_messages"] = np.array(list(result.responses), np.int64)
    errors = tuple(text.encode() for text in result.errors.values())
    arrays |= _joined("errors", "error_ends", errors)
    arrays["error_codes"] = np.array(list(result.errors), np.int64)
    np.savez(path, allow_pickle=False, **arrays)


def _read_result(path: Path) -> LoadResult:
    with np.load(path, allow_pickle=False) as arrays:
        responses = _split(arrays["responses"], arrays["response_ends"])
        errors = _split(arrays["errors"], arrays["error_ends"])
        return LoadResult(
            **{name: arrays[name] for name in _ARRAYS},
            **{name: arrays[name].item() for name in _NUMBERS},
            responses=dict(zip(arrays["response_messages"].tolist(), responses, strict=True)),
            errors={
                code: text.decode()
                for code, text in zip(arrays["error_codes"].tolist(), errors, strict=True)
            },
        )


def _joined(name: str, ends: str, parts: tuple[bytes, ...]) -> dict[str, NDArray[Any]]:
    """Byte strings as two arrays: uint8 of all, and int64 of where each ends."""
    lengths = np.array([len(part) for part in parts], np.int64)
    return {name: np.frombuffer(b"".join(parts), np.uint8), ends: np.cumsum(lengths)}


def _split(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> list[bytes]:
    whole, stops = data.tobytes(), ends.tolist()
    return [whole[a:b] for a, b in zip([0, *stops], stops, strict=False)]


if __name__ == "__main__":
    main()
