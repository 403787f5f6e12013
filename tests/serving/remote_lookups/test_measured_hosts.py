"""Costs of a front's calls of shard hosts, measured on a real one by `calibrate`."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serving.cli import app
from serving.remote_lookups.hosts_file import read_settings
from serving.remote_lookups.measured_hosts import measure_hosts
from sharded_infer.errors import ShardHostError
from sharded_infer.planning.topology_file import parse_topology
from tests.support.shard_host_processes import (
    ShardHostProcess,
    publish_for_hosts,
    running_shard_host,
)

TOKEN = "front-0123456789abcdef"  # noqa: S105 - of these tests


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardHostProcess]:
    """Host 1 of a plan of two; it requires a token."""
    folder = tmp_path_factory.mktemp("measured")
    publish_for_hosts(folder, 2, 2000)
    tokens = folder / "tokens"
    tokens.write_text(f"{TOKEN} predict # front\n")
    tokens.chmod(0o600)
    repository, log = folder / "repository", folder / "log"
    with running_shard_host(repository, 1, log, "--tokens-file", tokens) as process:
        yield process


def hosts_file(folder: Path, *, number: int, address: str) -> Path:
    file = folder / "hosts.toml"
    (folder / "token").write_text(TOKEN)
    file.write_text(f'timeout_ms = 60000\ntoken_file = "token"\n[hosts]\n{number} = "{address}"\n')
    return file


def test_a_topology_of_a_front_and_its_hosts_is_written(
    host: ShardHostProcess, tmp_path: Path
) -> None:
    file = hosts_file(tmp_path, number=1, address=host.address)
    out = tmp_path / "two.toml"
    words = ("calibrate", "--shard-hosts", file, "--out", out, "--ranks", 2, "--json")
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    topology = parse_topology(str(out))
    assert [device.host for device in topology.devices] == [0, 0, 1, 1] and told["hosts"] == [1]
    front = topology.front
    assert front is not None and front.host == told["front"]["host"] == 0
    # Wide limits: the machine may be busy.
    assert 1e-6 < front.call_seconds < 1
    assert 0 <= front.round_trip_seconds < 10
    assert 1e5 < front.send_bandwidth < 1e12
    assert 1e5 < front.receive_bandwidth < 1e12
    assert told["front"]["call_seconds"] == pytest.approx(front.call_seconds, rel=1e-3)


def test_a_host_that_is_another_silent_or_refuses_the_token_is_named(
    host: ShardHostProcess, tmp_path: Path
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{bound.getsockname()[1]}"
        for number, address, token, words in (
            (0, host.address, TOKEN, "shard host 0 at .*: answers as host 1"),
            (3, silent, TOKEN, f"shard host 3 at {silent}"),
            (1, host.address, TOKEN[::-1], "shard host 1 at .*token"),
        ):
            file = hosts_file(tmp_path, number=number, address=address)
            with pytest.raises(ShardHostError, match=words):
                measure_hosts(read_settings(file)._replace(token=token))
