"""Shard hosts of the demo: a plan with several hosts, and a process for each on this machine."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving.demo.server_process import CommandProcess, command_process
from sharded_infer.files.toml_file import toml_text
from sharded_infer.specs.model_spec import ModelSpec

# Memory of a rank over an even share of the tables: the planner places whole tables first. Without
# one of up to five hosts, the others have too little.
_ROOM = 1.2
# Of a lookup: other processes of this machine may be busy.
_TIMEOUT_MS = 10_000
# The host with two replicas.
REPLICATED_HOST = 1


@dataclass(frozen=True, slots=True)
class DemoHosts:
    """Processes: a replica of each host, another of `REPLICATED_HOST`; and bytes of each host."""

    hosts_file: Path
    processes: tuple[CommandProcess, ...]
    table_bytes: tuple[int, ...]

    @property
    def extra_replica(self) -> CommandProcess:
        """The replica that the demo kills."""
        return self.processes[-1]


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
    """Run `sharded-infer serve-shards` for each host, with the hosts file in the folder.

    Raises ShardedInferError if one does not become ready, or does not stop cleanly.
    """
    numbers = [*range(hosts), REPLICATED_HOST]
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
