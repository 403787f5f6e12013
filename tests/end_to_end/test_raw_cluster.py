"""Raw ids through fronts and shard hosts, all of them processes: the bits of one process."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.protocol.wire_strings import packed_strings
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.hosts_file import HostSettings
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import RequestError
from tests.end_to_end.test_cluster_bits import SumsAlone, clients_of, front_of, received
from tests.sharded_infer.lookups.test_random_plans import KINDS
from tests.support.fronts import hosts_file
from tests.support.raw_cluster import (
    MAPS,
    SPEC,
    USERS,
    publish_raw_cluster,
    publish_raw_parts,
    raw_inputs,
)
from tests.support.server_pages import samples
from tests.support.servers import RunningServer, infer_request, running_server, scores_of
from tests.support.shard_host_processes import ShardHostProcess, end_all, running_shard_host

HOSTS = 2
MODELS = {**{kind: (kind,) for kind in KINDS}, "mixed": KINDS}
OUTSIDE = "sharded_infer_ids_out_of_range_total"
Hosts = dict[int, ShardHostProcess]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    repository = tmp_path_factory.mktemp("raw") / "repository"
    published = {
        name: publish_raw_cluster(repository, HOSTS, kinds, name=name)
        for name, kinds in MODELS.items()
    }
    return published | {"parts": publish_raw_parts(repository, HOSTS, name="parts")}


@pytest.fixture(scope="module")
def hosts(versions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    repository, logs = versions["whole"].parents[1], tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        running = {
            number: stack.enter_context(
                running_shard_host(repository, number, logs / f"host{number}")
            )
            for number in range(HOSTS)
        }
        stack.callback(end_all, running.values())
        yield running


@pytest.fixture(scope="module")
def front(
    versions: dict[str, Path], hosts: Hosts, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server without rows."""
    folder = tmp_path_factory.mktemp("front")
    named = ("--shard-hosts", hosts_file(folder, hosts), "--memory", "map")
    with running_server(versions["whole"].parents[1], folder / "log", *named) as running:
        yield running


@pytest.mark.parametrize("model", [*MODELS, "parts"])
def test_fronts_have_the_bits_of_one_process(
    versions: dict[str, Path], hosts: Hosts, model: str
) -> None:
    version = versions[model]
    whole = open_model(version)
    addresses = {number: host.address for number, host in hosts.items()}
    rows_too, sums_alone = clients_of(addresses), clients_of(addresses)
    fronts = [front_of(version, rows_too), front_of(version, sums_alone, asking=SumsAlone)]
    fronts.append(front_of(version, clients_of(addresses, 1), 1))
    for seed, batch in enumerate((1, 2, 7, 60)):
        for inputs in (
            raw_inputs(batch, seed),
            raw_inputs(batch, seed, weighted=True),
            raw_inputs(batch, seed, shared=("user_id", "clicked", "shop")),
        ):
            expected = whole.predict(inputs)["score"]
            for one in fronts:
                np.testing.assert_array_equal(one.predict(inputs)["score"], expected)
    assert 0 < received(rows_too) < received(sums_alone)
    for one in fronts:
        with pytest.raises(RequestError, match="feature 'user_id', sample 1: id 4 is not in the"):
            one.predict(with_unknown_user())


def test_a_replica_of_parts_has_the_same_bits(
    versions: dict[str, Path], hosts: Hosts, tmp_path: Path
) -> None:
    version = versions["parts"]
    whole, inputs = open_model(version), raw_inputs(20, 5)
    expected = whole.predict(inputs)["score"]
    with running_shard_host(version.parents[1], 0, tmp_path / "replica", exit_code=None) as other:
        addresses = {0: (other.address, hosts[0].address), 1: (hosts[1].address,)}
        clients = HostClients(HostSettings(addresses, 60.0), answer_bytes=2**24)
        front = front_of(version, clients)
        for is_killed in (False, True):
            if is_killed:
                other.process.kill()
                other.process.wait()
            for _ in range(10):
                np.testing.assert_array_equal(front.predict(inputs)["score"], expected)


def with_unknown_user() -> dict[str, np.ndarray]:
    known = next(iter(MAPS["user"]))
    users = {"user_id": np.array([known, 4]), "user_id.lengths": np.array([1, 1])}
    return {**raw_inputs(2, 1), **users}


@pytest.mark.parametrize("model", ["mixed", "parts"])
def test_strings_pass_a_front_and_unknown_ids_are_counted(
    versions: dict[str, Path], front: RunningServer, model: str
) -> None:
    whole: Model = open_model(versions[model])
    inputs = raw_inputs(len(USERS), 3)
    hashed = np.array([*MAPS["user"]])
    users = {"user_id": hashed, "user_id.lengths": np.ones(len(USERS), np.int64)}
    expected = whole.predict({**inputs, **users})["score"]
    request = infer_request({**inputs, **users}, model=model)
    place = [one.name for one in request.inputs].index("user_id")
    request.inputs[place].datatype = "BYTES"
    request.raw_input_contents[place] = packed_strings(USERS)
    unknown = sum(
        int(raw not in MAPS[feature.table.name])
        for feature in SPEC.features
        if feature.table.id_map is not None and feature.name != "user_id"
        for raw in inputs[feature.name].tolist()
    )
    countries = inputs["country"]
    outside = unknown + int(((countries < 0) | (countries >= 7)).sum())
    before = counted(front, model)
    with front.stub() as stub:
        answer: service_pb2.ModelInferResponse = stub.ModelInfer(request, timeout=60)
    np.testing.assert_allclose(scores_of(answer)["score"], expected, atol=1e-5)
    assert unknown and counted(front, model) - before == outside


def counted(server: RunningServer, model: str) -> float:
    """Ids that the metrics of a model say were unknown or outside."""
    return sum(
        value
        for (name, labels), value in samples(server.metrics_url).items()
        if name == OUTSIDE and ("model", model) in labels
    )


def test_an_unknown_id_is_refused_to_its_request_alone(
    versions: dict[str, Path], front: RunningServer
) -> None:
    good, wrong = raw_inputs(2, 1), with_unknown_user()
    expected = open_model(versions["mixed"]).predict(good)["score"]
    with front.stub() as stub:
        calls = [
            stub.ModelInfer.future(infer_request(one, model="mixed"), timeout=60)
            for one in [good, wrong] * 20
        ]
        for number, call in enumerate(calls):
            if number % 2:
                error = call.exception()
                assert isinstance(error, grpc.RpcError)
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "feature 'user_id', sample 1: id 4 is not in the id map of table 'user'" in (
                    error.details()
                )
            else:
                np.testing.assert_allclose(scores_of(call.result())["score"], expected, atol=1e-5)


def test_the_front_maps_no_file_of_an_id_map_that_hosts_have(
    versions: dict[str, Path], hosts: Hosts, front: RunningServer
) -> None:
    of_front = mapped_files(front.process.pid)
    of_hosts = set().union(*(mapped_files(host.process.pid) for host in hosts.values()))
    for name in ("whole", "columns", "replicated"):
        manifest = open_artifact(versions[name]).manifest
        files = {str(versions[name] / file) for file in manifest.id_maps.values()}
        assert len(files) == len(MAPS)
        assert not files & of_front
        assert files <= of_hosts
    manifest = open_artifact(versions["rows"]).manifest
    files = {str(versions["rows"] / file) for file in manifest.id_maps.values()}
    assert files & of_front and not files <= of_hosts
    # In parts, but for the table whose unknown ids a hash sends to any row.
    files = open_artifact(versions["parts"]).manifest.id_maps
    here = {str(versions["parts"] / files.pop("page"))}
    theirs = {str(versions["parts"] / file) for file in files.values()}
    assert here <= of_front and not theirs & of_front and theirs <= of_hosts


def mapped_files(process: int) -> set[str]:
    """Files that a process, or one that it has forked, has mapped."""
    found: set[str] = set()
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    for one in (str(process), *children):
        for line in Path(f"/proc/{one}/maps").read_text().splitlines():
            found.add(line.split(maxsplit=5)[-1])
    return {file for file in found if os.sep in file}
