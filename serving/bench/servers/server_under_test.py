"""A measured server: its address, processor time and counters."""

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from serving.bench.load.process import split_cpus
from serving.bench.load.target import Target
from serving.demo.server_process import server_process
from serving.remote.caller import ANONYMOUS, Caller
from serving.remote.scraped_metrics import scraped_samples
from sharded_infer.errors import InputError

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters of all processes of a server; processor time and memory are None if not ours.

    Shared pages count for each process.
    """

    cpu_seconds: float | None
    resident_bytes: int | None
    batches: float = 0.0
    batch_samples: float = 0.0
    batch_requests: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """A running server: its first process if that is ours, and credentials of its metrics page."""

    target: Target
    metrics_url: str | None = None
    process_id: int | None = None
    caller: Caller = ANONYMOUS

    def counts(self) -> Counts:
        """Read the current counters; InputError if the metrics page cannot be read."""
        cpu, resident = None, None
        if self.process_id is not None:
            stats = [stat for pid in _family(self.process_id) if (stat := _stat(pid))]
            cpu = sum(int(stat[11]) + int(stat[12]) for stat in stats) / _CLOCK_TICKS
            resident = sum(int(stat[21]) for stat in stats) * _PAGE_BYTES
        totals: dict[str, float] = defaultdict(float)
        if self.metrics_url is not None:
            for sample in scraped_samples(self.metrics_url, self.caller):
                totals[sample.name] += sample.value
        return Counts(
            cpu,
            resident,
            totals["sharded_infer_batch_samples_count"],
            totals["sharded_infer_batch_samples_sum"],
            totals["sharded_infer_batch_requests_sum"],
        )


@contextmanager
def served(repository: Path, options: Sequence[str]) -> Iterator[ServerUnderTest]:
    """Run our server on a core; ShardedInferError without a ready line or a clean stop."""
    with server_process(repository, options=options, cpus=split_cpus()[0]) as server:
        yield ServerUnderTest(target_of(server.grpc_url), server.metrics_url, server.process.pid)


@contextmanager
def servers_of(
    publish: Callable[[Path], object], options: Mapping[_K, Sequence[str]]
) -> Iterator[dict[_K, ServerUnderTest]]:
    """Publish a model in a temporary folder, and start a server for each set of options."""
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="sharded-infer-bench-"))
        publish(Path(name))
        yield {
            key: stack.enter_context(served(Path(name), words)) for key, words in options.items()
        }


def target_of(address: str) -> Target:
    """Parse `host:port`; raise InputError for another form."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"address {address!r}: expected host:port")
    return Target(host.strip("[]"), int(port))


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    parents = {pid: int(stat[1]) for pid in pids if (stat := _stat(pid))}
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the name; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
