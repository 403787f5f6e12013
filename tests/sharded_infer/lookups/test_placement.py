from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.stored_rows import decode
from sharded_infer.lookups.placement import (
    hold,
    mapped_by_hosts,
    place,
    raw_hashes,
    share_digest,
    share_of,
)
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.topology import Device, Topology
from sharded_infer.publishing.table_layout import lay_out
from sharded_infer.specs.id_map_spec import IdMapSpec, IdPartition
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from tests.sharded_infer.lookups.test_batch_lookup import on_hosts
from tests.sharded_infer.lookups.test_plan_lookups import (
    MIXED,
    PLANS,
    TABLES,
    encoded_tables,
    placed_pieces,
    plan_of,
    stored_pieces,
)

REPLICATED = ("page",)


def mixed() -> Plan:
    rectangles = {name: shards for name, shards in MIXED.items() if name not in REPLICATED}
    return on_hosts(plan_of(rectangles, replicated=REPLICATED), (5, 0, 5))


def test_the_order_of_a_share_never_changes() -> None:
    # Old and new releases number pieces alike: what is written here is what processes say.
    share = share_of(placed_pieces(mixed(), 150), 0)
    assert [
        (p.table.name, p.first_row, p.rows, p.first_column, p.columns, p.turn) for p in share
    ] == [
        ("ads", 0, 4, 4, 4, None),
        ("ads", 4, 11, 4, 4, None),
        ("ads", 15, 1, 0, 4, None),
        ("ads", 16, 12, 0, 4, None),
        ("ads", 28, 2, 0, 4, None),
        ("country", 0, 7, 2, 3, None),
        ("user", 0, 7, 2, 4, None),
        ("user", 7, 2, 2, 4, None),
        ("user", 9, 8, 5, 1, None),
        ("page", 0, 18, 0, 4, 1),
        ("page", 18, 7, 0, 4, 1),
    ]
    digest = "611510ff213483ccc6033f2934d7c88cdf47076c35cb3a11534637bcaad25242"
    assert share_digest(share) == digest


def test_a_digest_tells_shares_apart() -> None:
    placed = placed_pieces(mixed())
    digests = {share_digest(share_of(placed, host)) for host in (0, 5)}
    assert len(digests) == 2
    assert share_digest(share_of(placed_pieces(mixed()), 0)) in digests
    for change in {"rank": 0}, {"first_row": 1}, {"columns": 3}, {"file": "other"}, {"turn": 0}:
        first, *rest = share_of(placed, 0)
        assert share_digest([replace(first, **change), *rest]) not in digests


def test_hosts_map_ids_of_tables_whose_rows_none_of_them_lacks() -> None:
    every, spec = frozenset(TABLES), mapped_spec()
    placed = placed_pieces(mixed())
    whole = {
        name for name in every if all(p.holds_all_rows for p in placed if name == p.table.name)
    }
    assert REPLICATED[0] in whole and whole < every
    assert mapped_by_hosts(placed, spec) == whole
    for front in (0, 5):
        of_front = {piece.table.name for piece in share_of(placed, front)}
        assert mapped_by_hosts(placed, spec, front) == whole - of_front
    # Files cut tables too.
    assert mapped_by_hosts(placed_pieces(mixed(), 23), spec) < whole


def mapped_spec(partition: IdPartition | None = None) -> ModelSpec:
    id_map = IdMapSpec("zero", partition=partition)
    tables = (TableSpec(t.name, t.rows, t.dim, id_map=id_map) for t in TABLES.values())
    return ModelSpec("mapped", tuple(tables))


def test_hosts_map_ids_of_whole_parts_of_rows() -> None:
    table = max(TABLES.values(), key=lambda one: one.rows)
    ends = [0, 2, 5, table.rows]
    every = [(0, 2), (2, 5), (5, table.rows)]
    plans = {True: [every, [(0, 5), (5, table.rows)]], False: [[(0, 3), (3, table.rows)]]}
    partition = IdPartition(tuple(ends[:-1]), (0, 7, 2**63))
    [mapped] = [t for t in mapped_spec(partition).tables if t.name == table.name]
    spec = ModelSpec("one", (mapped,))
    topology = Topology("three", tuple(Device(host=host) for host in range(3)))
    for are_parts, cuts in plans.items():
        for of_plan in cuts:
            shards = tuple(
                Shard(table.name, rank, first, last, 0, table.dim)
                for rank, (first, last) in enumerate(of_plan)
            )
            placed = place(Plan(topology, shards), {table.name: table}, lay_out([table]))
            assert (mapped_by_hosts(placed, spec) == {table.name}) is are_parts
            assert mapped_by_hosts(placed, spec, 0) == frozenset()
    shards = tuple(Shard(table.name, 1, *rows, 0, table.dim) for rows in every)
    first, _, last = place(Plan(topology, shards), {table.name: table}, lay_out([table]))
    assert raw_hashes(first, mapped) == (0, 6)
    assert raw_hashes(last, mapped) == (2**63, 2**64 - 1)
    assert raw_hashes(last, None) is None


def test_a_digest_says_which_tables_the_host_maps() -> None:
    share = share_of(placed_pieces(mixed()), 5)
    own = {piece.table.name for piece in share}
    digests = {share_digest(share, {name}) for name in own}
    assert len({share_digest(share), share_digest(share, own), *digests}) == 2 + len(own)
    assert share_digest(share, {"another host's"}) == share_digest(share)


@pytest.mark.parametrize("file_bytes", [8 * 2**30, 150, 23])
@pytest.mark.parametrize("plan", PLANS)
def test_rows_of_pieces_are_those_of_the_table(tmp_path: Path, plan: str, file_bytes: int) -> None:
    stored = encoded_tables()
    placed = placed_pieces(plan_of(PLANS[plan]), file_bytes)
    held = hold(placed, stored_pieces(tmp_path, stored, file_bytes))
    assert list(held) == placed
    for piece, rows in held.items():
        row_format, table = piece.table.row_format, piece.table
        end = rows.byte_offset + piece.rows * row_format.row_bytes(piece.columns)
        found = rows.memory[rows.byte_offset : end].view(piece.rows, -1)
        whole = decode(row_format, stored[table.name], table.dim)
        last_row, last_column = piece.first_row + piece.rows, piece.first_column + piece.columns
        wanted = whole[piece.first_row : last_row, piece.first_column : last_column]
        assert torch.equal(decode(row_format, found, piece.columns), wanted)
