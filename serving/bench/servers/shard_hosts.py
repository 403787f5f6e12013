"""Shard hosts in processes of their own, and what their processors did."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sharded_infer.errors import ShardedInferError

_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class MeasuredHost:
    """A running shard host."""

    address: str
    process_id: int

    def cpu_seconds(self) -> float:
        """Processor time of all its threads."""
        total = 0
        for task in Path(f"/proc/{self.process_id}/task").iterdir():
            # Nanoseconds on a processor come first (the kernel's sched-stats.rst).
            total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9


@contextmanager
def shard_hosts(
    repository: Path, hosts: int, cpus: Set[int]
) -> Iterator[Mapping[int, MeasuredHost]]:
    """Starts `sharded-infer serve-shards` for each host of the plan, and stops them at the end.

    Args:
        cpus: cores that they may use.

    Raises:
        ShardedInferError: one did not become ready, or did not stop cleanly.
    """
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(_shard_host(repository, number, cpus))
            for number in range(hosts)
        }


@contextmanager
def _shard_host(repository: Path, number: int, cpus: Set[int]) -> Iterator[MeasuredHost]:
    command = [sys.executable, "-m", "serving.cli", "serve-shards", "--json", "--port", "0"]
    command += ["--repository", str(repository), "--host-number", str(number), "--slots", "1"]
    process = subprocess.Popen(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    os.sched_setaffinity(process.pid, cpus)
    try:
        line = "" if process.stdout is None else process.stdout.readline()
        if not line:
            raise ShardedInferError(f"shard host {number} did not start: its error output is above")
        yield MeasuredHost(json.loads(line)["grpc_url"], process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if process.returncode != 0:
        raise ShardedInferError(f"shard host {number} ended with exit code {process.returncode}")
