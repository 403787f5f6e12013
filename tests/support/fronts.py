"""Processes of `serve --shard-hosts`, and requests to them."""

from collections.abc import Iterator, Mapping, Sequence
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


@contextmanager
def running_hosts(
    ranker: Ranker, folder: Path, numbers: Sequence[int], *options: object
) -> Iterator[dict[int, ShardHostProcess]]:
    with ExitStack() as stack:
        hosts = {
            number: stack.enter_context(
                running_shard_host(ranker.repository, number, folder / f"host{number}", *options)
            )
            for number in numbers
        }
        stack.callback(end_all, hosts.values())
        yield hosts


@contextmanager
def running_front(
    ranker: Ranker,
    folder: Path,
    hosts: Mapping[int, ShardHostProcess],
    *options: object,
    more: str = "",
) -> Iterator[RunningServer]:
    named = ("--shard-hosts", hosts_file(folder, hosts, more))
    with running_server(ranker.repository, folder / "front", *named, *options) as server:
        yield server


def hosts_file(folder: Path, hosts: Mapping[int, ShardHostProcess], more: str = "") -> Path:
    return replicas_file(folder, {number: (host,) for number, host in hosts.items()}, more)


def replicas_file(
    folder: Path, hosts: Mapping[int, Sequence[ShardHostProcess]], more: str = ""
) -> Path:
    file, new = folder / "hosts.toml", folder / "hosts.toml.new"
    lines = []
    for number, replicas in hosts.items():
        addresses = ", ".join(f'"{replica.address}"' for replica in replicas)
        lines.append(
            f"{number} = [{addresses}]" if len(replicas) > 1 else f"{number} = {addresses}"
        )
    new.write_text("\n".join((more, "[hosts]", *lines, "")))
    new.replace(file)
    return file


def infer(server: RunningServer, inputs: Arrays, seconds: float = SECONDS) -> Arrays:
    with server.stub() as stub:
        return scores_of(stub.ModelInfer(infer_request(inputs), timeout=seconds))


def check(server: RunningServer, ranker: Ranker, batch: int, seed: int = 0) -> None:
    inputs = good_inputs(batch, seed)
    found = infer(server, inputs)
    for name, expected in ranker.predict(inputs).items():
        assert np.abs(found[name] - expected).max() < 1e-5


def code_of(server: RunningServer, seconds: float = SECONDS) -> tuple[str, str]:
    try:
        infer(server, good_inputs(2), seconds)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def all_are_answered(server: RunningServer) -> bool:
    """True if many requests succeed, enough to use each thread of the front."""
    return all(code_of(server)[0] == "OK" for _ in range(20))


def is_of(front: RunningServer, ranker: Ranker) -> bool:
    inputs = good_inputs(3)
    found, expected = infer(front, inputs), ranker.predict(inputs)
    return all(np.abs(found[name] - scores).max() < 1e-5 for name, scores in expected.items())
