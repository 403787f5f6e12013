"""Processes of `sharded-infer serve-shards`, and a model whose plan has several hosts."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.servers import (
    CommandProcess,
    Ranker,
    end,
    publish_ranker,
    read_ready,
    start_command,
)


@dataclass(slots=True)
class ShardHostProcess:
    """A running shard host: address of lookups, line of JSON, True if it was told to end."""

    process: CommandProcess
    address: str
    log: Path
    ready: dict[str, Any]
    is_ending: bool = False


@contextmanager
def running_shard_host(
    repository: Path | str,
    number: int,
    log: Path,
    *options: object,
    exit_code: int | None = 0,
    program: str | None = None,
) -> Iterator[ShardHostProcess]:
    """Run `sharded-infer serve-shards` in the context; arguments are those of `running_server`."""
    words = ("serve-shards", "-r", repository, "--host-number", number, "--host", "127.0.0.1")
    with log.open("w") as errors:
        process = start_command(
            *(*words, "--port", 0, "--http-port", 0, "--json", *options),
            stderr=errors,
            program=program,
        )
    host: ShardHostProcess | None = None
    try:
        ready = read_ready(process, log)
        host = ShardHostProcess(process, ready["grpc_url"], log, ready)
        yield host
    finally:
        end(process, is_told=host is not None and host.is_ending)
    assert exit_code is None or process.returncode == exit_code, log.read_text()


def end_all(hosts: Iterable[ShardHostProcess]) -> None:
    """End hosts at the same time: each waits for its clients to leave, or 2 s."""
    for host in hosts:
        host.is_ending = True
        host.process.terminate()


def publish_for_hosts(
    folder: Path, hosts: int, rank_bytes: int, seed: int = 5, **more: Any
) -> Ranker:
    """Publish the ranker for hosts of one rank, whose memory makes the planner split tables."""
    topology = folder / f"hosts{hosts}.toml"
    rank = '[[devices]]\ncard = "cpu"\nhost = {}\nmemory = "{}KB"\n'
    topology.write_text("".join(rank.format(host, rank_bytes / 1000) for host in range(hosts)))
    return publish_ranker(folder / "repository", seed, topology=str(topology), **more)
