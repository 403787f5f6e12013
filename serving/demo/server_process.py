"""Servers in separate processes, started and stopped by the demo."""

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
from typing import Any

from sharded_infer.errors import ShardedInferError

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0


class CommandProcess:
    """A command of `sharded-infer` that prints a line of JSON when it is ready."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.process = process
        self.name = name
        self.is_killed = False

    def ready(self) -> dict[str, Any]:
        """Wait for the line of JSON; ShardedInferError if the process does not become ready."""
        return _read_ready(self.process, self.name)

    def kill(self) -> None:
        """End the process without a drain, as a lost machine would."""
        self.is_killed = True
        self.process.kill()
        self.process.wait()


@contextmanager
def command_process(
    *words: object, keep: bool = False, cpus: Set[int] | None = None
) -> Iterator[CommandProcess]:
    """Run a command of `sharded-infer`, without `--json`, inside the context.

    With `keep` it is left running after success. Its cores default to those of this process.
    Raises ShardedInferError if it did not stop cleanly.
    """
    command = [sys.executable, "-m", "serving.cli", *map(str, words), "--json"]
    # A separate session: the demo handles its own interrupts.
    process = subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    if cpus is not None:
        os.sched_setaffinity(process.pid, cpus)
    started, kept = CommandProcess(process, str(words[0])), False
    try:
        yield started
        kept = keep and not started.is_killed
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
    if not kept and not started.is_killed and process.returncode != 0:
        raise ShardedInferError(f"{started.name} ended with exit code {process.returncode}")


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
    """Run `sharded-infer serve` inside the context, from when it is ready.

    Port 0 picks a free one; `options` are further arguments. Raises ShardedInferError if the server
    does not become ready, or does not stop cleanly.
    """
    words = ("serve", "--repository", repository, "--port", port, "--http-port", 0)
    with command_process(*words, "--grace-seconds", 0, *options, keep=keep, cpus=cpus) as started:
        ready = started.ready()
        yield ServerProcess(started.process, ready["grpc_url"], ready["metrics_url"])


def _read_ready(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    stdout = process.stdout
    if stdout is None:
        raise ShardedInferError(f"the output of {name} is not captured")
    deadline = monotonic() + _START_SECONDS
    while monotonic() < deadline:
        # The command writes its one line in a single write.
        if select.select([stdout], [], [], 0.2)[0]:
            line = stdout.readline()
            if line.startswith("{"):
                ready: dict[str, Any] = json.loads(line)
                return ready
            if not line:
                break
    code = process.poll()
    state = "was not ready in time" if code is None else f"ended with exit code {code}"
    raise ShardedInferError(f"{name} {state}; its error output is above")
