"""Ranks of other hosts, beside ranks of this process: the same bits, and their own errors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.errors import LostMemoryError
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.errors import RequestError, ShardHostError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.lookups import batch_lookup
from sharded_infer.lookups.placement import hold, place, share_of
from sharded_infer.lookups.plan_lookups import PlanLookups
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.lookups.share_lookups import ShareLookups
from sharded_infer.planning.plan import Plan
from sharded_infer.publishing.table_layout import lay_out
from tests.sharded_infer.lookups.test_plan_lookups import (
    FEATURES,
    PLANS,
    SPEC,
    TABLES,
    batch_of,
    encoded_tables,
    inputs,
    look_up,
    plan_of,
    stored_pieces,
)
from tests.support.shard_hosts import Answer, ThreadedHosts

pytestmark = pytest.mark.usefixtures("poisoned_memory")

Pieces = Mapping[str, Sequence[TablePiece]]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as running:
        yield running


def pooled_by(share: ShareLookups, groups: Sequence[PieceBags]) -> Sequence[Tensor]:
    return share.look_up(groups).pooled


class Deployment:
    """A plan whose ranks lie on hosts, and each host's share, looked up by threads."""

    def __init__(self, plan: Plan, pieces: Pieces, threads: ThreadPoolExecutor) -> None:
        self.placed = place(plan, TABLES, lay_out(list(TABLES.values())))
        self.pieces, self._threads = pieces, threads

    def in_one_process(self) -> PlanLookups:
        return PlanLookups(SPEC, self.placed, hold(self.placed, self.pieces))

    def share(self, host: int) -> ShareLookups:
        held = hold(share_of(self.placed, host), self.pieces)
        return ShareLookups(SPEC, self.placed, held, host)

    def hosts(self, here: Iterable[int], **others: Answer) -> ThreadedHosts:
        """All hosts but those `here`; `host_2` replaces host 2's answer."""
        answers: dict[int, Answer] = {}
        for host in {piece.host for piece in self.placed} - set(here):
            answers[host] = others.get(f"host_{host}") or partial(pooled_by, self.share(host))
        return ThreadedHosts(answers, self._threads)

    def asking(
        self, here: Sequence[int] = (), **others: Answer
    ) -> tuple[ThreadedHosts, PlanLookups]:
        hosts = self.hosts(here, **others)
        return hosts, self.front(hosts, here)

    def front(self, hosts: ThreadedHosts, here: Sequence[int] = ()) -> PlanLookups:
        own = [piece for piece in self.placed if piece.host in here]
        return PlanLookups(SPEC, self.placed, hold(own, self.pieces), hosts=hosts)


Deploy = Callable[..., Deployment]


@pytest.fixture
def deploy(tmp_path: Path, threads: ThreadPoolExecutor) -> Deploy:
    def deployed(
        plan: str, hosts: Sequence[int] = (0, 1, 2), *, replicated: tuple[str, ...] = ()
    ) -> Deployment:
        rectangles = {n: r for n, r in PLANS[plan].items() if n not in replicated}
        made = on_hosts(plan_of(rectangles, replicated=replicated), hosts)
        return Deployment(made, stored_pieces(tmp_path, encoded_tables()), threads)

    return deployed


def lose(_groups: Sequence[PieceBags]) -> Sequence[Tensor]:
    raise LostMemoryError("its tables are lost")


def on_hosts(plan: Plan, hosts: Sequence[int]) -> Plan:
    devices = zip(plan.topology.devices, hosts, strict=True)
    placed = tuple(replace(device, host=host) for device, host in devices)
    return replace(plan, topology=replace(plan.topology, devices=placed))


def same_bits(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_replicas_are_read_here_if_there_are_any_and_else_in_turns(deploy: Deploy) -> None:
    deployment = deploy("whole", (0, 1, 1), replicated=tuple(TABLES))
    expected = look_up(deployment.in_one_process(), inputs()[0]).pooled
    own: tuple[int, ...]
    for own, asked, ranks in ((0,), [], {0}), ((), [0, 1], {0, 1, 2}), ((1,), [], {1, 2}):
        hosts, front = deployment.asking(own)
        found_on = set()
        for _ in range(3):
            found = look_up(front, inputs()[0])
            assert same_bits(found.pooled, expected)
            found_on |= {step[0] for step in found.work.steps}
        assert {host for batch in hosts.asked for host in batch} == set(asked)
        assert found_on == ranks


def test_replicas_of_lost_hosts_are_read_elsewhere_until_they_are_back(deploy: Deploy) -> None:
    deployment = deploy("whole", replicated=tuple(TABLES))
    expected = look_up(deployment.in_one_process(), inputs()[0]).pooled
    for own in ((), (1,)):
        hosts, front = deployment.asking(own)
        others = {0, 1, 2} - {*own}
        for lost in (set(), {0}, {0, 2}, {0, 1, 2}, set()):
            hosts.lost = frozenset(lost & others)
            hosts.asked.clear()
            for _ in range(3):
                assert same_bits(look_up(front, inputs()[0]).pooled, expected)
            asked = {host for batch in hosts.asked for host in batch}
            # Where all are lost they are asked all the same: one may be back.
            assert asked == (set() if own else others - lost or others)


def test_all_groups_of_a_batch_are_asked_at_once_and_awaited_last(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, front = deploy("rows").asking((0,))
    look_up_groups = batch_lookup.look_up_groups

    def noted(*arguments: Any) -> object:
        if "finished" not in hosts.events:
            hosts.events.append("looked up here")
        return look_up_groups(*arguments)

    monkeypatch.setattr(batch_lookup, "look_up_groups", noted)
    groups = batch_of(60, features=FEATURES[:3]), batch_of(20, features=FEATURES[3:])
    look_up(front, ModelInput(60, groups, (), repeats=np.full(20, 3)))
    assert hosts.events == ["started", "looked up here", "finished"]
    (asked,) = hosts.asked
    assert sorted(asked) == [1, 2]
    assert [group.bags.lengths.shape[1] for group in asked[1]] == [60, 20]


def test_a_host_that_has_none_of_the_ids_is_not_asked(deploy: Deploy) -> None:
    deployment = deploy("rows", (0, 1, 2))
    hosts, front = deployment.asking()
    ones = np.ones((len(FEATURES), 1), np.int64)
    first_rows = ModelInput(
        1, (JaggedBatch(FEATURES, np.zeros(len(FEATURES), np.int64), ones),), ()
    )
    expected = look_up(deployment.in_one_process(), first_rows).pooled
    assert same_bits(look_up(front, first_rows).pooled, expected)
    # Row 0 of each table: host 2 has that of `user`, host 1 that of `page`, host 0 the others.
    assert [sorted(batch) for batch in hosts.asked] == [[0, 1, 2]]
    ads = JaggedBatch(FEATURES, np.zeros(1, np.int64), np.eye(len(FEATURES), 1, dtype=np.int64))
    look_up(front, ModelInput(1, (ads,), ()))
    assert sorted(hosts.asked[-1]) == [0]


def test_a_host_that_fails_fails_the_lookup_and_is_named(deploy: Deploy) -> None:
    hosts, front = deploy("rows").asking(host_1=lose)
    with pytest.raises(ShardHostError, match="shard host 1: its tables are lost"):
        look_up(front, inputs()[0])
    assert hosts.events == ["started", "finished"]


def test_a_failed_rank_cancels_requests(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, front = deploy("rows").asking((0,))

    def lose(*_: object) -> object:
        raise LostMemoryError("tables of this process are lost")

    monkeypatch.setattr(batch_lookup, "look_up_groups", lose)
    with pytest.raises(LostMemoryError, match="tables of this process are lost"):
        look_up(front, inputs()[0])
    assert hosts.events == ["started", "cancelled"]


@pytest.mark.parametrize("kind", ["none", "fewer", "other shape"])
def test_an_answer_of_another_shape_is_refused_with_its_host(deploy: Deploy, kind: str) -> None:
    deployment = deploy("ranks")
    share = deployment.share(1)

    def answer(groups: Sequence[PieceBags]) -> Sequence[Tensor]:
        pooled = share.look_up(groups).pooled
        return {"none": [], "fewer": pooled[:-1], "other shape": [p[:, 1:] for p in pooled]}[kind]

    front = deployment.front(deployment.hosts((0,), host_1=answer), (0,))
    with pytest.raises(ShardHostError, match=r"shard host 1: expected answers of shapes \[\(6, "):
        look_up(front, inputs()[0])


def test_an_id_outside_its_table_is_refused_before_anyone_is_asked(deploy: Deploy) -> None:
    hosts, front = deploy("rows").asking()
    group = batch_of(6)
    group.values[0] = 99
    with pytest.raises(RequestError, match="feature 'shown', sample 0: id 99 is outside"):
        look_up(front, ModelInput(6, (group,), ()))
    assert hosts.events == []
