"""Fronts that leave raw ids to shard hosts: bits, counts and refusals of one process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.protocol.lookups.compiled_reader import read_answer
from serving.protocol.lookups.lookup_messages import write_lookup
from serving.protocol.lookups.version_key import digest_number, version_key
from serving.shard_host.held_shares import HeldShare, HeldShares
from serving.shard_host.lookup_counts import LookupCounter
from serving.shard_host.lookup_service import LookupService
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import Model, open_model
from sharded_infer.engines.model_share import open_share
from sharded_infer.errors import InternalError, NotFoundError, RequestError
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.lookups.placement import mapped_by_hosts, place_stored
from sharded_infer.lookups.raw_ids import UnknownIdError
from sharded_infer.lookups.shard_hosts import Front, GroupAnswer, PieceBags, StartedLookup
from sharded_infer.v1 import shard_host_pb2
from tests.sharded_infer.lookups.test_random_plans import KINDS
from tests.support.raw_cluster import MAPS, publish_raw_cluster, publish_raw_parts, raw_inputs
from tests.support.raw_ids import Arrays

pytestmark = pytest.mark.usefixtures("poisoned_memory")
HOSTS = 3
# Of whose rows a hash of their ids makes parts.
PARTED = {"user", "item", "shop", "ad"}
OF_USER = "feature 'user_id', sample 1: id {} is not in the id map of table 'user'"


class MessagedHosts:
    """Hosts in this process, whose messages are written and read as between machines.

    Attributes:
        asked: each batch's requests, by host.
    """

    def __init__(self, version: Path, hosts: Collection[int]) -> None:
        self.hosts, self.lost = frozenset(hosts), frozenset[int]()
        self.asked: list[Mapping[int, Sequence[PieceBags]]] = []
        self.key = version_key(open_artifact(version).manifest)
        self.shares = {host: HeldShare(self.key, open_share(version, host)) for host in hosts}
        self._services = {host: _service(host, held) for host, held in self.shares.items()}

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        self.asked.append(asked)
        return _Started(self, asked)

    def answer(self, host: int, groups: Sequence[PieceBags]) -> Sequence[GroupAnswer]:
        message = write_lookup(self.key, groups, self.shares[host].number)
        answer = self._services[host].look_up(bytes(message))
        try:
            return read_answer(memoryview(answer), groups)
        except UnknownIdError as error:
            raise UnknownIdError(error.where, host) from error


class _Started:
    def __init__(self, hosts: MessagedHosts, asked: Mapping[int, Sequence[PieceBags]]) -> None:
        self._hosts, self._asked = hosts, asked

    def finish(self) -> Mapping[int, Sequence[GroupAnswer]]:
        return {host: self._hosts.answer(host, groups) for host, groups in self._asked.items()}

    def cancel(self) -> None:
        """Nothing has been started."""


def _service(host: int, held: HeldShare) -> LookupService:
    shares = HeldShares()
    shares.replace([held])
    return LookupService(shares, host, LookupCounter())


def hosts_of(version: Path) -> set[int]:
    artifact = open_artifact(version)
    return {piece.host for piece in place_stored(artifact.plan(None), artifact)}


def front_of(version: Path, own: int | None = None) -> tuple[Model, MessagedHosts]:
    hosts = MessagedHosts(version, hosts_of(version) - {own})
    return open_model(version, front=Front(hosts, own)), hosts


def checked(model: Model, inputs: Arrays) -> ModelInput:
    return InputPolicy(model.spec, model.id_maps).apply(make_input(model.spec, inputs))


def requests(batch: int, seed: int) -> list[Arrays]:
    shared = ("user_id", "bought", "shop")
    return [
        raw_inputs(batch, seed),
        raw_inputs(batch, seed, weighted=True),
        raw_inputs(batch, seed, shared=shared),
    ]


@pytest.fixture(scope="module", params=["mixed", "2 parted", "4 parted"])
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans of every kind of piece, or of rows that a hash of their ids places."""
    folder = tmp_path_factory.mktemp("raw")
    if request.param == "mixed":
        return publish_raw_cluster(folder, HOSTS, KINDS)
    return publish_raw_parts(folder / "repository", int(request.param[0]))


def test_scores_have_the_bits_of_one_process_and_unknown_ids_its_counts(version: Path) -> None:
    whole = open_model(version)
    for own in (None, max(hosts_of(version))):
        front, _ = front_of(version, own)
        for seed, batch in enumerate((1, 2, 9, 40)):
            for inputs in requests(batch, seed):
                expected, found = checked(whole, inputs), checked(front, inputs)
                [wanted], [got] = run_batch(whole, [expected]), run_batch(front, [found])
                np.testing.assert_array_equal(got.scores[0], wanted.scores[0])
                assert got.ids_outside == wanted.ids_outside
                told = dict(found.ids_unknown) | dict(got.ids_unknown)
                assert told == dict(expected.ids_unknown)


def test_each_request_of_a_batch_is_told_its_own_unknown_ids(version: Path) -> None:
    whole, (front, _) = open_model(version), front_of(version)
    for shared in ((), ("clicked", "shop", "page")):
        asked = [raw_inputs(batch, batch, shared=shared) for batch in (3, 1, 8)]
        expected = [checked(whole, inputs) for inputs in asked]
        found = run_batch(front, [checked(front, inputs) for inputs in asked])
        for one, wanted, result in zip(expected, run_batch(whole, expected), found, strict=True):
            np.testing.assert_array_equal(result.scores[0], wanted.scores[0])
            assert result.ids_outside == one.ids_outside > 0


def test_a_front_opens_no_id_map_of_tables_that_hosts_map(version: Path) -> None:
    artifact = open_artifact(version)
    placed, spec = place_stored(artifact.plan(None), artifact), artifact.manifest.model_spec()
    if any(table.id_map and table.id_map.partition for table in spec.tables):
        assert mapped_by_hosts(placed, spec) == PARTED
    for own in (None, max(hosts_of(version))):
        front, hosts = front_of(version, own)
        theirs = mapped_by_hosts(placed, spec, own)
        assert front.id_maps.keys() == MAPS.keys() - theirs
        for host, held in hosts.shares.items():
            there = {piece.table.name for piece in placed if piece.host == host}
            assert held.share.id_maps.keys() == there & mapped_by_hosts(placed, spec)
        front.predict(raw_inputs(4, 0))
        asked = hosts.asked[0] if hosts.asked else {}
        raw = {
            next(p.table.name for p in placed if (p.host, p.number) == (host, number))
            for host, groups in asked.items()
            for group in groups
            if group.raw
            for number in group.pieces.tolist()
        }
        assert raw == theirs


def test_generated_samples_are_rows_for_hosts_too(version: Path) -> None:
    whole, (front, hosts) = open_model(version), front_of(version)
    one, other = (generate_samples(whole.spec, 12, seed) for seed in (0, 1))
    for asked in ([one], [one.samples(3, 5)], [one, other]):
        for found, wanted in zip(run_batch(front, asked), run_batch(whole, asked), strict=True):
            np.testing.assert_array_equal(found.scores[0], wanted.scores[0])
            assert found.ids_outside == 0
    assert not any(group.raw for asked in hosts.asked for of in asked.values() for group in of)


def test_an_unknown_id_is_refused_in_the_words_of_one_process(version: Path) -> None:
    front, _ = front_of(version)
    known, strange = next(iter(MAPS["user"])), -(2**63) + 1
    inputs = raw_inputs(3, 0)
    inputs["user_id"] = np.array([known, known, strange, known])
    inputs["user_id.lengths"] = np.array([1, 2, 1])
    for model in (front, open_model(version)):
        with pytest.raises(RequestError) as refused:
            model.predict(inputs)
        assert str(refused.value) == OF_USER.format(strange)


def test_a_host_that_maps_other_tables_is_not_asked(version: Path) -> None:
    front, hosts = front_of(version)
    front.predict(raw_inputs(2, 0))
    host, groups = next(iter(hosts.asked[0].items()))
    other = write_lookup(hosts.key, groups, digest_number("1" * 64))
    with pytest.raises(NotFoundError, match="holds other rows of it"):
        _service(host, hosts.shares[host]).look_up(bytes(other))


@pytest.mark.parametrize("is_compiled", [True, False])
def test_answers_that_cannot_be_those_of_raw_ids_are_refused(
    tmp_path: Path, is_compiled: bool
) -> None:
    groups, sums = answered(tmp_path)
    if not is_compiled:
        groups = [replace(group, stored=None) for group in groups]
    entries, bags = groups[0].bags.lengths.shape
    count = entries * bags
    for unknown, words in (
        ([2**31] * count, "more unknown ids than group 0 has ids"),
        (
            [0] * (count - 1),
            f"{4 * count - 4} bytes of numbers of unknown ids, expected {4 * count}",
        ),
        (
            [0] * (count + 1),
            f"{4 * count + 4} bytes of numbers of unknown ids, expected {4 * count}",
        ),
    ):
        refuse(shard_host_pb2.LookupResponse(sums=sums, unknown=unknown), groups, words)
    for place in ((2, 0, 0), (1, 0, 0), (0, entries, 0), (0, 0, bags)):
        where = shard_host_pb2.UnknownId(group=place[0], entry=place[1], bag=place[2])
        words = "refuses an id of group {}, entry {}, bag {}, where no raw".format(*place)
        refuse(shard_host_pb2.LookupResponse(refused=where), groups, words)


def refuse(answer: shard_host_pb2.LookupResponse, groups: Sequence[PieceBags], words: str) -> None:
    with pytest.raises(InternalError, match=words):
        read_answer(memoryview(answer.SerializeToString()), groups)


def answered(folder: Path) -> tuple[Sequence[PieceBags], Sequence[bytes]]:
    """A group of raw ids and one of rows for a host, and its sums."""
    version = publish_raw_cluster(folder, 1, ("whole",))
    front, hosts = front_of(version)
    front.predict(raw_inputs(3, 0))
    [asked] = hosts.asked[0].values()
    groups = [next(group for group in asked if group.raw is raw) for raw in (True, False)]
    answer = _service(0, hosts.shares[0]).look_up(bytes(write_lookup(hosts.key, groups)))
    return groups, list(shard_host_pb2.LookupResponse.FromString(answer).sums)
