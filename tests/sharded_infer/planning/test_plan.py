import json
from dataclasses import replace
from typing import Any

import pytest

from kernels.row_format import RowFormat
from sharded_infer.errors import PlanError
from sharded_infer.planning.plan import Plan, Shard, StoredTable, check_plan, dump_plan, load_plan
from sharded_infer.planning.topology_file import parse_topology

ADS = StoredTable("ads", rows=10, dim=6, row_format=RowFormat.INT8)  # 10 bytes a row
USER = StoredTable("user", rows=4, dim=3, row_format=RowFormat.BF16)  # 6 bytes a row
TABLES = {"ads": ADS, "user": USER}
WHOLE_USER = Shard("user", 0, 0, 4, 0, 3)

Rectangle = tuple[int, int, int, int]


def plan_of(*ads: Rectangle, topology: str = "cpu:2", rank: int = 0) -> Plan:
    """The given rectangles of `ads` on one rank, all of `user` on rank 0."""
    shards = (*(Shard("ads", rank, *rectangle) for rectangle in ads), WHOLE_USER)
    return Plan(parse_topology(topology), shards)


@pytest.mark.parametrize(
    "rectangles",
    [
        [(0, 10, 0, 6)],
        [(0, 3, 0, 6), (3, 10, 0, 6)],
        [(3, 10, 0, 6), (0, 3, 0, 6)],
        [(0, 10, 0, 1), (0, 10, 1, 6)],
        [(0, 5, 0, 3), (0, 5, 3, 6), (5, 10, 0, 2), (5, 10, 2, 6)],
        # A pinwheel: no straight cut.
        [(0, 4, 0, 4), (0, 6, 4, 6), (6, 10, 2, 6), (4, 10, 0, 2), (4, 6, 2, 4)],
    ],
)
def test_shards_that_cover_every_cell_once_are_a_plan(rectangles: list[Rectangle]) -> None:
    check_plan(plan_of(*rectangles), TABLES)


@pytest.mark.parametrize(
    "rectangles",
    [
        [],
        [(0, 9, 0, 6)],
        [(0, 10, 0, 5)],
        [(0, 10, 0, 6), (0, 10, 0, 6)],
        [(0, 6, 0, 6), (5, 10, 0, 6)],
        [(0, 4, 0, 6), (5, 10, 0, 6)],
        [(0, 10, 0, 4), (0, 10, 3, 6)],
        # As many cells as the table has, some of them twice.
        [(0, 5, 0, 6), (0, 5, 0, 6)],
        [(0, 5, 0, 6), (4, 9, 0, 6)],
        [(0, 5, 0, 3), (0, 5, 3, 6), (5, 10, 0, 3), (4, 9, 3, 6)],
    ],
)
def test_gaps_and_overlaps_are_refused(rectangles: list[Rectangle]) -> None:
    with pytest.raises(PlanError, match="table 'ads': .* must cover each of 10 x 6 cells exactly"):
        check_plan(plan_of(*rectangles), TABLES)


@pytest.mark.parametrize(
    "rectangle",
    [(-1, 10, 0, 6), (0, 11, 0, 6), (0, 10, -1, 6), (0, 10, 0, 7), (5, 5, 0, 6), (6, 5, 0, 6)],
)
def test_a_shard_outside_its_table_is_refused(rectangle: Rectangle) -> None:
    with pytest.raises(PlanError, match="table 'ads': shard rows .* leave its 10 x 6 cells"):
        check_plan(plan_of(rectangle), TABLES)


def test_bytes_count_the_scale_and_bias_of_every_column_shard() -> None:
    plan = plan_of((0, 10, 0, 2), (0, 10, 2, 6), rank=1)
    assert plan.bytes_by_rank(TABLES) == [4 * 6, 10 * (4 + 2) + 10 * (4 + 4)]


def test_a_rank_is_filled_to_its_last_byte_and_no_further() -> None:
    check_plan(plan_of((0, 10, 0, 6), topology="cpu:1x0.024KB+cpu:1x0.1KB", rank=1), TABLES)
    with pytest.raises(PlanError, match="rank 1: its shards are 100 bytes, its memory is 99"):
        check_plan(plan_of((0, 10, 0, 6), topology="cpu:1+cpu:1x0.099KB", rank=1), TABLES)


def edited(**fields: object) -> bytes:
    document: dict[str, Any] = json.loads(dump_plan(plan_of((0, 10, 0, 6))))
    document["shards"][0] |= fields
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "Invalid JSON"),
        (b"{", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b"3", "Input should be"),
        (b'{"topology": {"name": "a", "devices": []}}', "shards: "),
        (b'{"shards": []}', "topology: "),
        (b'{"topology": "cpu:1", "shards": []}', "topology: "),
        (b'{"topology": {"name": "a", "devices": []}, "shards": [], "x": 1}', "x: Unexpected"),
        (edited(rank="first"), r"shards\.0\.rank: .*integer"),
        (edited(first_row=0.5), r"shards\.0\.first_row: .*integer"),
        (edited(colour="red"), r"shards\.0\.colour: Unexpected"),
    ],
)
def test_another_document_is_refused_by_field(text: bytes, words: str) -> None:
    with pytest.raises(PlanError, match=f"plans/x.json: not a plan: .*{words}"):
        load_plan(text, "plans/x.json")


def test_a_replicated_table_lies_whole_on_every_rank_that_is_used() -> None:
    plan = Plan(parse_topology("cpu:2"), (WHOLE_USER,), replicated=("ads",))
    check_plan(plan, TABLES)
    ads, user = ADS.stored_bytes, USER.stored_bytes
    assert plan.bytes_by_rank(TABLES) == [ads + user, ads]
    assert load_plan(dump_plan(plan)) == plan
    plan = Plan(parse_topology("cpu:3"), (WHOLE_USER,), replicated=("ads",), unused=(1,))
    check_plan(plan, TABLES)
    assert plan.bytes_by_rank(TABLES) == [ads + user, 0, ads]


REPLICATED = {"shards": (WHOLE_USER,), "replicated": ("ads",)}
ON_ALL = {"shards": (), "replicated": tuple(TABLES)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shards": (replace(WHOLE_USER, rank=-1),)}, "rank -1 is not in topology 'cpu:2'"),
        ({"shards": (replace(WHOLE_USER, rank=2),)}, "rank 2 is not in topology 'cpu:2'"),
        ({"shards": (replace(WHOLE_USER, table="moon"),)}, "'moon', which the model does not have"),
        ({"replicated": ("ads", "ads")}, "table 'ads' is replicated twice, or is not"),
        ({"replicated": ("moon",)}, "table 'moon' is replicated twice, or is not"),
        ({"replicated": ("ads", "user")}, "table 'user' is replicated, yet it has a shard"),
        (
            {"shards": (replace(WHOLE_USER, rank=1),), "unused": (1,)},
            "table 'user': rank 1 is unused, yet has a shard",
        ),
        *(
            ({**ON_ALL, "unused": ranks}, "unused: expected some of the ranks 0 to 1, ascending")
            for ranks in ((2,), (-1,), (1, 1), (1, 0), (0, 1))
        ),
    ],
)
def test_ranks_and_tables_that_no_plan_has_are_refused(changes: dict[str, Any], words: str) -> None:
    plan = Plan(parse_topology("cpu:2"), **(REPLICATED | changes))
    with pytest.raises(PlanError, match=words):
        check_plan(plan, TABLES)
