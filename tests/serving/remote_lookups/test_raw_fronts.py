"""Fronts that leave raw ids, also of sequences, to shard hosts: all as in one process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from serving.protocol.lookups.compiled_reader import read_answer
from serving.protocol.lookups.lookup_messages import write_lookup
from serving.protocol.lookups.version_key import version_key
from serving.shard_host.held_shares import HeldShare, HeldShares
from serving.shard_host.lookup_counts import LookupCounter
from serving.shard_host.lookup_service import LookupService
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import RequestError
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.lookups.placement import mapped_by_hosts, place_stored
from sharded_infer.lookups.raw_ids import UnknownIdError
from sharded_infer.lookups.shard_hosts import Front, GroupAnswer, PieceBags, StartedLookup
from sharded_infer.specs.model_spec import GateSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.sharded_infer.lookups.test_random_plans import KINDS
from tests.support.batches import run_together
from tests.support.model_shares import open_share
from tests.support.raw_cluster import (
    MAPS,
    SPEC,
    TABLES,
    publish_raw_cluster,
    publish_raw_parts,
    raw_inputs,
)
from tests.support.raw_ids import Arrays

pytestmark = pytest.mark.usefixtures("poisoned_memory")
HOSTS = 3
OF_USER = "feature 'user_id', sample 1: id {} is not in the id map of table 'user'"


class MessagedHosts:
    """Hosts in this process, with messages as between machines; `asked`: of each batch, by host."""

    def __init__(self, version: Path, hosts: Collection[int]) -> None:
        self.hosts, self.lost = frozenset(hosts), frozenset[int]()
        self.asked: list[Mapping[int, Sequence[PieceBags]]] = []
        self.key = version_key(open_artifact(version).manifest)
        self.shares = {host: HeldShare(self.key, open_share(version, host)) for host in hosts}
        self._services = {}
        for host, held in self.shares.items():
            shares = HeldShares()
            shares.replace([held])
            self._services[host] = LookupService(shares, host, LookupCounter())

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        self.asked.append(asked)

        def finish() -> Mapping[int, Sequence[GroupAnswer]]:
            return {host: self.answer(host, groups) for host, groups in asked.items()}

        started: Any = SimpleNamespace(finish=finish, cancel=lambda: None)
        return started

    def answer(self, host: int, groups: Sequence[PieceBags]) -> Sequence[GroupAnswer]:
        message = write_lookup(self.key, groups, self.shares[host].number)
        answer = self._services[host].look_up(bytes(message))
        try:
            return read_answer(memoryview(answer), groups)
        except UnknownIdError as error:
            raise UnknownIdError(error.where, host) from error


def hosts_of(version: Path) -> set[int]:
    artifact = open_artifact(version)
    return {piece.host for piece in place_stored(artifact.plan(None), artifact)}


def front_of(version: Path, own: int | None = None) -> tuple[Model, MessagedHosts]:
    hosts = MessagedHosts(version, hosts_of(version) - {own})
    return open_model(version, front=Front(hosts, own)), hosts


def checked(model: Model, inputs: Arrays) -> ModelInput:
    return InputPolicy(model.spec, model.id_maps).apply(make_input(model.spec, inputs))


@pytest.fixture(scope="module", params=["mixed", "2 parted", "4 parted"])
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans of every kind of piece, or of rows that a hash of their ids places."""
    folder = tmp_path_factory.mktemp("raw")
    if request.param == "mixed":
        return publish_raw_cluster(folder, HOSTS, KINDS)
    return publish_raw_parts(folder / "repository", int(request.param[0]))


def check_alike(whole: Model, front: Model, inputs: Arrays) -> int:
    """Compare bits and counts of a request; return how many of its ids are unknown."""
    expected, found = checked(whole, inputs), checked(front, inputs)
    wanted, got = run_batch(whole, expected), run_batch(front, found)
    np.testing.assert_array_equal(got.scores[0], wanted.scores[0])
    assert got.ids_outside == wanted.ids_outside
    assert dict(found.ids_unknown) | dict(got.ids_unknown) == dict(expected.ids_unknown)
    return sum(count for _, count in expected.ids_unknown)


def test_scores_have_the_bits_of_one_process_and_unknown_ids_its_counts(version: Path) -> None:
    whole = open_model(version)
    for own in (None, max(hosts_of(version))):
        front, _ = front_of(version, own)
        for seed, batch in enumerate((1, 2, 9, 40)):
            check_alike(whole, front, raw_inputs(batch, seed))
            check_alike(whole, front, raw_inputs(batch, seed, weighted=True))
            shared = raw_inputs(batch, seed, shared=("user_id", "bought", "shop"))
            check_alike(whole, front, shared)


def test_each_request_of_a_batch_is_told_its_own_unknown_ids(version: Path) -> None:
    whole, (front, _) = open_model(version), front_of(version)
    for shared in ((), ("clicked", "shop", "page")):
        asked = [raw_inputs(batch, batch, shared=shared) for batch in (3, 1, 8)]
        expected = [checked(whole, inputs) for inputs in asked]
        found = run_together(front, [checked(front, inputs) for inputs in asked])
        for one, wanted, result in zip(expected, run_together(whole, expected), found, strict=True):
            np.testing.assert_array_equal(result.scores[0], wanted.scores[0])
            assert result.ids_outside == one.ids_outside > 0


def test_a_front_opens_no_id_map_of_tables_that_hosts_map(version: Path) -> None:
    artifact = open_artifact(version)
    placed, spec = place_stored(artifact.plan(None), artifact), artifact.manifest.model_spec()
    if any(table.id_map and table.id_map.partition for table in spec.tables):
        assert mapped_by_hosts(placed, spec) == {"user", "item", "shop", "ad"}
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
        for found, wanted in zip(
            run_together(front, asked), run_together(whole, asked), strict=True
        ):
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


# Maps that leave unknown ids out, give them a row, and refuse them; a feature of two tables.
SEQUENCES = {
    "seen": SequenceSpec(40, features=("clicked", "page"), dense={"when": 1}),
    "shops": SequenceSpec(40, features=("shop", "country"), pad="left"),
    "users": SequenceSpec(3, features=("user_id",), keep="first", pad_to="max_length"),
}
WITH = replace(SPEC, sequences=SEQUENCES, gate=GateSpec(max_score_diff=100))


class Weighed(nn.Module):
    def forward(self, **inputs: Tensor) -> Tensor:
        found = [inputs["age"].sum(1), inputs["embeddings"].sum(1)]
        for name in SEQUENCES:
            rows = inputs[name]
            positions = torch.arange(rows.shape[1], dtype=torch.float32)[None, :, None]
            if SEQUENCES[name].pad == "left":
                # From the end: how far a batch is padded must not matter.
                positions = rows.shape[1] - positions
            found.append((rows / (1 + positions)).sum((1, 2)) + inputs[f"{name}_lengths"])
        return torch.stack([*found, inputs["when"].sum((1, 2))]).sum(0)


@pytest.fixture(scope="module")
def with_sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequences")
    return publish_raw_cluster(folder, HOSTS, KINDS, spec=WITH, tower=Weighed())


def inputs_of(batch: int, seed: int, *, is_shared: bool = False) -> Arrays:
    """A request with known and unknown raw ids, whose sequences may be shared by all samples."""
    shared = tuple(n for one in SEQUENCES.values() for n in one.features) if is_shared else ()
    arrays = raw_inputs(batch, seed, shared=shared)
    generator = np.random.default_rng(seed)
    for one in SEQUENCES.values():
        lengths = arrays[f"{one.features[0]}.lengths"]
        for name in one.features[1:]:
            ids = arrays[name] if len(arrays[name]) else np.zeros(1, np.int64)
            arrays[name] = generator.choice(ids, int(lengths.sum()))
            arrays[f"{name}.lengths"] = lengths
    arrays["when"] = generator.standard_normal(len(arrays["clicked"]), np.float32)
    arrays["when.lengths"] = arrays["clicked.lengths"]
    # No longer than the sequence: of longer ones a host is not asked for the rest.
    users = arrays["user_id.lengths"] = np.minimum(arrays["user_id.lengths"], 3)
    arrays["user_id"] = arrays["user_id"][: int(users.sum())]
    return arrays


def test_sequences_have_the_bits_of_one_process_and_unknown_ids_its_counts(
    with_sequences: Path,
) -> None:
    whole, unknown = open_model(with_sequences), 0
    for own in (None, max(hosts_of(with_sequences))):
        front, _ = front_of(with_sequences, own)
        for seed, batch in enumerate((1, 2, 9, 1, 2, 9)):
            unknown += check_alike(whole, front, inputs_of(batch, seed, is_shared=seed > 2))
    assert unknown > 5


def test_an_id_that_is_left_out_of_a_sequence_leaves_zeros_and_its_companion_stays(
    with_sequences: Path,
) -> None:
    known, row = next(iter(MAPS["item"].items()))
    inputs = inputs_of(1, 0)
    for name, ids in {"clicked": [known, 77, known], "page": [5, 6, 7]}.items():
        inputs |= {name: np.array(ids), f"{name}.lengths": np.array([3])}
    inputs |= {"when": np.zeros(3, np.float32), "when.lengths": np.array([3])}
    generator = torch.Generator().manual_seed(3)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in TABLES}
    for model in (open_model(with_sequences), front_of(with_sequences)[0]):
        asked = checked(model, inputs)
        width, dim = WITH.tower_sequences["seen"].width, weights["item"].shape[1]
        rows = model.engine.embeddings(asked)[0, WITH.embedding_width :]
        found = rows[: 8 * width].view(8, width)
        expected = weights["item"][row].to(torch.bfloat16).float()
        assert torch.equal(found[0, :dim], expected) and torch.equal(found[2, :dim], expected)
        assert not found[1, :dim].any() and not found[3:].any()
        assert (found[:3, dim:].abs().sum(1) > 0).all()
