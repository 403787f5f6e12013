"""A server in a separate process, started and stopped by the demo."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from sharded_infer.errors import ShardedInferError

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server."""

    process: subprocess.Popen[str]
    grpc_url: str
    metrics_url: str


@contextmanager
def server_process(
    repository: Path,
    *,
    port: int = 0,
    keep: bool = False,
    options: Sequence[str] = (),
    cpus: Set[int] | None = None,
) -> Iterator[ServerProcess]:
    """Starts `sharded-infer serve` and waits until it is ready; stops it at the end.

    Args:
        port: gRPC port; 0 picks a free one.
        keep: leave it running after success.
        options: further arguments of `sharded-infer serve`.
        cpus: cores that it may use; None: those of this process.

    Raises:
        ShardedInferError: it did not become ready, or did not stop cleanly.
    """
    command = [sys.executable, "-m", "serving.cli", "serve", "--repository", str(repository)]
    command += ["--port", str(port), "--http-port", "0", "--json"]
    command += ["--grace-seconds", "0", *options]
    # A session of its own, so that an interrupt of the demo is the demo's to handle.
    process = subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    if cpus is not None:
        os.sched_setaffinity(process.pid, cpus)
    kept = False
    try:
        ready = _read_ready(process)
        yield ServerProcess(process, str(ready["grpc_url"]), str(ready["metrics_url"]))
        kept = keep
    finally:
        if not kept:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if not kept and process.returncode != 0:
        raise ShardedInferError(f"the server ended with exit code {process.returncode}")


def _read_ready(process: subprocess.Popen[str]) -> dict[str, object]:
    stdout = process.stdout
    if stdout is None:
        raise ShardedInferError("the server's output is not captured")
    deadline = monotonic() + _START_SECONDS
    while monotonic() < deadline:
        # A line comes whole: the server writes its one line at once.
        if select.select([stdout], [], [], 0.2)[0]:
            line = stdout.readline()
            if line.startswith("{"):
                ready: dict[str, object] = json.loads(line)
                return ready
            if not line:
                break
    code = process.poll()
    state = "was not ready in time" if code is None else f"ended with exit code {code}"
    raise ShardedInferError(f"the server {state}; its error output is above")
