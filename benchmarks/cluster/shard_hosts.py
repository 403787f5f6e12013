"""Shard hosts in processes of their own, and what their processors did."""

from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving.demo.server_process import command_process


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
    """
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(_shard_host(repository, number, cpus))
            for number in range(hosts)
        }


@contextmanager
def _shard_host(repository: Path, number: int, cpus: Set[int]) -> Iterator[MeasuredHost]:
    words = ("--repository", repository, "--host-number", number, "--slots", 1)
    ports = ("--port", 0, "--http-port", 0)
    with command_process("serve-shards", *words, *ports, cpus=cpus) as started:
        yield MeasuredHost(str(started.ready()["grpc_url"]), started.process.pid)
