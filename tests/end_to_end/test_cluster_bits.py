"""Plans of every kind on 2 and 5 shard hosts: a front has the bits of one process."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serving.protocol.lookups.version_key import version_key
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.hosts_file import HostSettings
from serving.remote_lookups.remote_hosts import RemoteHosts
from sharded_infer import Model, open_model
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.lookups.shard_hosts import Front, PieceBags, StartedLookup
from sharded_infer.planning.plan import dump_plan
from tests.sharded_infer.lookups.test_random_plans import KINDS, random_plan
from tests.support.manifest_file import edit_manifest
from tests.support.servers import good_inputs, publish_ranker
from tests.support.shard_host_processes import ShardHostProcess, end_all, running_shard_host

SECONDS = 60.0
# One model for each; the last has tables of all kinds.
MODELS = {**{kind: (kind,) for kind in KINDS}, "mixed": KINDS}
BATCHES = (1, 2, 7, 33, 100)
Hosts = dict[int, ShardHostProcess]


def publish_plans(
    repository: Path,
    hosts: int,
    models: Mapping[str, tuple[str, ...]] = MODELS,
    *,
    sums: str = "fp32",
) -> dict[str, Path]:
    """A version for each kind of plan, whose plan is drawn instead of made; their folders.

    Args:
        sums: how those of hosts travel.
    """
    folders = {}
    for number, (name, kinds) in enumerate(models.items()):
        version = publish_ranker(repository, number, name, f"cpu:{2 * hosts}").model.artifact.path
        manifest = open_artifact(version).manifest
        [(topology, file)] = manifest.plans.items()
        generator = np.random.default_rng([hosts, number])
        plan = random_plan(
            generator, hosts, kinds=kinds, tables=manifest.stored_tables(), name=topology
        )
        text = dump_plan(plan)
        (version / file).write_bytes(text)
        record = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}

        def edit(document: dict[str, Any], file: str = file, record: object = record) -> None:
            document["files"][file] = record
            if sums != "fp32":
                document["spec"]["serving"]["remote_sums"] = sums

        edit_manifest(version, edit)
        folders[name] = version
    return folders


@pytest.fixture(scope="module", params=[2, 5])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, Path], Hosts]]:
    """The versions, and their hosts."""
    hosts: int = request.param
    folder = tmp_path_factory.mktemp(f"hosts{hosts}")
    versions = publish_plans(folder / "repository", hosts)
    with ExitStack() as stack, ThreadPoolExecutor(hosts) as starters:
        started = [
            running_shard_host(folder / "repository", n, folder / f"log{n}") for n in range(hosts)
        ]
        running = list(starters.map(stack.enter_context, started))
        stack.callback(end_all, running)
        yield versions, dict(enumerate(running))


def sums_of(asked: Mapping[int, Sequence[PieceBags]]) -> dict[int, list[PieceBags]]:
    """The same pieces, answered with fp32 sums alone."""
    return {
        host: [PieceBags(group.pieces, group.chosen, raw=group.raw) for group in groups]
        for host, groups in asked.items()
    }


class SumsAlone(RemoteHosts):
    """Asks as a release does that cannot read stored rows."""

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        return super().start(sums_of(asked), deadline, may_lose)


def clients_of(addresses: dict[int, str], own: int | None = None) -> HostClients:
    """Connections to hosts, but for the front's own."""
    asked = {number: (address,) for number, address in addresses.items() if number != own}
    return HostClients(HostSettings(asked, SECONDS), answer_bytes=2**24)


def front_of(
    version: Path,
    clients: HostClients,
    own: int | None = None,
    asking: type[RemoteHosts] = RemoteHosts,
) -> Model:
    """A version as a front opens it, with the ranks of one host or none."""
    remote = asking(version_key(open_artifact(version).manifest), clients)
    return open_model(version, front=Front(remote, own))


def received(clients: HostClients) -> int:
    """Bytes of answers."""
    return sum(group.counts.received_bytes for group in clients.now.groups.values())


@pytest.mark.parametrize("model", MODELS)
def test_fronts_have_the_bits_of_the_same_plan_in_one_process(
    cluster: tuple[dict[str, Path], Hosts], model: str
) -> None:
    versions, hosts = cluster
    whole = open_model(versions[model])
    addresses = {number: host.address for number, host in hosts.items()}
    rows_too, sums_alone = clients_of(addresses), clients_of(addresses)
    fronts = [
        front_of(versions[model], rows_too),
        front_of(versions[model], sums_alone, asking=SumsAlone),
    ]
    own = len(hosts) - 1
    fronts.append(front_of(versions[model], clients_of(addresses, own), own))
    for seed, batch in enumerate(BATCHES):
        # Features of bags, of weights, of one table; and the user's sent once for all candidates.
        asked = [good_inputs(batch, seed)]
        asked.append({**asked[0], "user": asked[0]["user"][:1]})
        for inputs in asked:
            expected = whole.predict(inputs)
            for front in fronts:
                found = front.predict(inputs)
                for name, scores in expected.items():
                    np.testing.assert_array_equal(found[name], scores)
    # Some pieces of each plan have fewer bytes of rows than of sums.
    assert 0 < received(rows_too) < received(sums_alone)


class BothWidths(RemoteHosts):
    """Asks for fp32 sums too, and compares them with the answer that is given."""

    are_rounded = False

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        exact = super().start(sums_of(asked), deadline, may_lose).finish()
        found = super().start(asked, deadline, may_lose).finish()
        for host, groups in asked.items():
            for group, (one, _), (other, _) in zip(groups, exact[host], found[host], strict=True):
                most = 2.0**-8 if group.sum_bytes == 2 else 0.0
                assert ((one - other).abs() <= most * one.abs()).all()
                self.are_rounded |= not torch.equal(one, other)
        return super().start(asked, deadline, may_lose)


def test_sums_of_16_bits_are_within_their_bound_and_partial_sums_are_exact(tmp_path: Path) -> None:
    models = {kind: (kind,) for kind in ("whole", "rows")}
    versions = publish_plans(tmp_path / "repository", 1, models, sums="bf16")
    with running_shard_host(tmp_path / "repository", 0, tmp_path / "log") as host:
        for kind, version in versions.items():
            clients = clients_of({0: host.address})
            remote = BothWidths(version_key(open_artifact(version).manifest), clients)
            front, whole = open_model(version, front=Front(remote)), open_model(version)
            for seed, batch in enumerate(BATCHES):
                inputs = good_inputs(batch, seed)
                found, expected = front.predict(inputs), whole.predict(inputs)
                for name, scores in expected.items():
                    if kind == "rows":
                        np.testing.assert_array_equal(found[name], scores)
                    else:
                        np.testing.assert_allclose(found[name], scores, atol=0.02)
            assert remote.are_rounded == (kind == "whole")
