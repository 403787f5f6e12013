"""Processes of `serve --shard-hosts`, and requests to them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np

from tests.support.servers import (
    Arrays,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.shard_host_processes import ShardHostProcess, end_all, running_shard_host

SECONDS = 60.0
# By number, each with its replicas.
Hosts = Mapping[int, ShardHostProcess | Sequence[ShardHostProcess]]


@contextmanager
def running_hosts(
    repository: Path | str,
    folder: Path,
    numbers: Iterable[int],
    *options: object,
    exit_code: int | None = 0,
) -> Iterator[dict[int, ShardHostProcess]]:
    with ExitStack() as stack:
        hosts = {}
        for number in numbers:
            log = folder / f"host{number}"
            host = running_shard_host(repository, number, log, *options, exit_code=exit_code)
            hosts[number] = stack.enter_context(host)
        stack.callback(end_all, hosts.values())
        yield hosts


@contextmanager
def running_front(
    repository: Path | str, folder: Path, hosts: Hosts, *options: object, more: str = ""
) -> Iterator[RunningServer]:
    named = ("--shard-hosts", hosts_file(folder, hosts, more))
    with running_server(repository, folder / "front", *named, *options) as server:
        yield server


def hosts_file(folder: Path, hosts: Hosts, more: str = "") -> Path:
    file, new = folder / "hosts.toml", folder / "hosts.toml.new"
    lines = []
    for number, host in hosts.items():
        replicas = [host] if isinstance(host, ShardHostProcess) else host
        places = [replica.address for replica in replicas]
        lines.append(f"{number} = {places if len(places) > 1 else places[0]!r}")
    new.write_text("\n".join((more, "[hosts]", *lines, "")))
    new.replace(file)
    return file


def infer(server: RunningServer, inputs: Arrays, seconds: float = SECONDS) -> Arrays:
    with server.stub() as stub:
        return scores_of(stub.ModelInfer(infer_request(inputs), timeout=seconds))


def is_of(front: RunningServer, ranker: Ranker, batch: int = 3, seed: int = 0) -> bool:
    inputs = good_inputs(batch, seed)
    found, expected = infer(front, inputs), ranker.predict(inputs)
    return all(np.abs(found[name] - scores).max() < 1e-5 for name, scores in expected.items())


def check(server: RunningServer, ranker: Ranker, batch: int, seed: int = 0) -> None:
    assert is_of(server, ranker, batch, seed)


def code_of(server: RunningServer, seconds: float = SECONDS) -> tuple[str, str]:
    try:
        infer(server, good_inputs(2), seconds)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def all_are_answered(server: RunningServer) -> bool:
    """True if many requests succeed, enough to use each thread of the front."""
    return all(code_of(server)[0] == "OK" for _ in range(20))
