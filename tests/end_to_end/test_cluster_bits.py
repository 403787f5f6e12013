"""Plans of every kind on shard hosts: a front has the bits of one process."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from serving.protocol.lookups.version_key import version_key
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.hosts_file import HostSettings
from serving.remote_lookups.remote_hosts import RemoteHosts
from sharded_infer import Model, open_model
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.lookups.shard_hosts import Front, PieceBags, StartedLookup
from tests.sharded_infer.lookups.test_random_plans import KINDS, random_plan
from tests.support.raw_cluster import replace_plan
from tests.support.servers import good_inputs, publish_ranker
from tests.support.shard_host_processes import ShardHostProcess, end_all, running_shard_host

SECONDS = 60.0
HOSTS = 3
# One model for each; the last has tables of all kinds.
MODELS = {**{kind: (kind,) for kind in KINDS}, "mixed": KINDS}
BATCHES = (1, 2, 7, 33, 100)
Hosts = dict[int, ShardHostProcess]


def publish_plans(repository: Path, hosts: int) -> dict[str, Path]:
    """A version for each kind of plan, whose plan is drawn instead of made; their folders."""
    folders = {}
    for number, (name, kinds) in enumerate(MODELS.items()):
        version = publish_ranker(repository, number, name, f"cpu:{2 * hosts}").model.artifact.path
        manifest = open_artifact(version).manifest
        [topology] = manifest.plans
        generator = np.random.default_rng([hosts, number])
        plan = random_plan(
            generator, hosts, kinds=kinds, tables=manifest.stored_tables(), name=topology
        )
        replace_plan(version, plan)
        folders[name] = version
    return folders


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[dict[str, Path], Hosts]]:
    """The versions, and their hosts."""
    folder = tmp_path_factory.mktemp("hosts")
    versions = publish_plans(folder / "repository", HOSTS)
    with ExitStack() as stack:
        hosts = {
            number: stack.enter_context(
                running_shard_host(folder / "repository", number, folder / f"log{number}")
            )
            for number in range(HOSTS)
        }
        stack.callback(end_all, hosts.values())
        yield versions, hosts


class SumsAlone(RemoteHosts):
    """Asks as a release does that cannot read stored rows."""

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        sums = {
            host: [PieceBags(group.pieces, group.chosen, raw=group.raw) for group in groups]
            for host, groups in asked.items()
        }
        return super().start(sums, deadline, may_lose)


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
