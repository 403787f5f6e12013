"""Servers and shard hosts in separate processes, started and stopped by the demo."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from sharded_infer.errors import ShardedInferError
from sharded_infer.files.toml_file import toml_text
from sharded_infer.specs.model_spec import ModelSpec

_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
# Memory of a rank over an even share of the tables: the planner places whole tables first. Without
# one of up to five hosts, the others have too little.
_ROOM = 1.2
# Of a lookup: other processes of this machine may be busy.
_TIMEOUT_MS = 10_000
_REPLICATED_HOST = 1


class CommandProcess:
    """A command of `sharded-infer` that prints a line of JSON when it is ready."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.process = process
        self.name = name
        self.is_killed = False

    def ready(self) -> dict[str, Any]:
        """Wait for the line of JSON; ShardedInferError if the process does not become ready."""
        stdout = self.process.stdout
        if stdout is None:
            raise ShardedInferError(f"the output of {self.name} is not captured")
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
        code = self.process.poll()
        state = "was not ready in time" if code is None else f"ended with exit code {code}"
        raise ShardedInferError(f"{self.name} {state}; its error output is above")

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

    With `keep` it is left running after success. Raises ShardedInferError unless it stops cleanly.
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
    """Run `sharded-infer serve` in the context, when it is ready; errors as `command_process`."""
    words = ("serve", "--repository", repository, "--port", port, "--http-port", 0)
    with command_process(*words, "--grace-seconds", 0, *options, keep=keep, cpus=cpus) as started:
        ready = started.ready()
        yield ServerProcess(started.process, ready["grpc_url"], ready["metrics_url"])


@dataclass(frozen=True, slots=True)
class DemoHosts:
    """Processes: a replica of each host, then another of one; and bytes of each host."""

    hosts_file: Path
    processes: tuple[CommandProcess, ...]
    table_bytes: tuple[int, ...]


def write_topology(folder: Path, spec: ModelSpec, hosts: int) -> str:
    """Write a topology of one-rank hosts, with memory for an even share, and return its path."""
    row = spec.quantization.format
    stored = sum(table.rows * row.row_bytes(table.dim) for table in spec.tables if row is not None)
    memory = f"{round(_ROOM * stored / hosts / 1000) + 1}KB"
    file = folder / f"hosts{hosts}.toml"
    devices = [{"card": "cpu", "host": host, "memory": memory} for host in range(hosts)]
    file.write_text(toml_text({"devices": devices}))
    return str(file)


@contextmanager
def shard_host_processes(
    repository: Path, folder: Path, hosts: int, *, keep: bool
) -> Iterator[DemoHosts]:
    """Run `sharded-infer serve-shards` for each host, with the hosts file in the folder."""
    numbers = [*range(hosts), _REPLICATED_HOST]
    ports = ("--port", 0, "--http-port", 0)
    words = ("serve-shards", "--repository", repository, *ports, "--host-number")
    with ExitStack() as stack:
        # All at once: each takes seconds to start.
        processes = [
            stack.enter_context(command_process(*words, number, keep=keep)) for number in numbers
        ]
        ready_lines = [process.ready() for process in processes]
        addresses: dict[str, list[str]] = {}
        for number, ready in zip(numbers, ready_lines, strict=True):
            addresses.setdefault(str(number), []).append(str(ready["grpc_url"]))
        file = folder / "hosts.toml"
        file.write_text(toml_text({"timeout_ms": _TIMEOUT_MS, "hosts": addresses}))
        held = (
            sum(one["table_bytes"] for one in ready["versions"]) for ready in ready_lines[:hosts]
        )
        yield DemoHosts(file, tuple(processes), tuple(held))
