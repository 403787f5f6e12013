from dataclasses import dataclass
from typing import Any

import pytest

from serving.http_api.connections.connection_table import PROBE_PLACES, ConnectionTable, Drop, Stage
from serving.http_api.connections.limits import HttpLimits

LIMITS = HttpLimits(
    max_connections=4,
    max_address_connections=3,
    header_seconds=10,
    body_seconds=20,
    idle_seconds=40,
)


@dataclass(eq=False)
class Connection:
    address: str
    only_probes: bool = False
    unsent: int = 0


@pytest.fixture
def table() -> ConnectionTable:
    return ConnectionTable(LIMITS)


def entered(table: ConnectionTable, address: str, now: float) -> Any:
    connection: Any = Connection(address)
    table.enter(connection, now)
    return connection


def test_an_address_has_fewer_places_than_all_together(table: ConnectionTable) -> None:
    first = [entered(table, "a", now) for now in range(3)]
    assert table.too_many("a") is Drop.ADDRESS and table.too_many("b") is None
    other = entered(table, "b", 3)
    assert table.too_many("a") is Drop.ADDRESS and table.too_many("b") is Drop.CONNECTIONS
    for connection in (first[0], first[0], other):
        table.leave(connection)
    assert table.too_many("a") is None and table.too_many("b") is None and len(table) == 2


def test_the_address_with_the_most_connections_gives_way(table: ConnectionTable) -> None:
    other = entered(table, "b", 0)
    first = [entered(table, "a", now) for now in range(1, 4)]
    table.move(first[0], Stage.IDLE, 5)
    assert table.next_to_go(Drop.CONNECTIONS, "b") is first[1]
    assert table.next_to_go(Drop.ADDRESS, "a") is first[1]
    # Who is answered does not give way, nor does another address to one with too many.
    for connection in first:
        table.move(connection, None, 6)
    assert table.next_to_go(Drop.ADDRESS, "a") is None
    assert table.next_to_go(Drop.CONNECTIONS, "c") is other
    table.move(other, None, 6)
    assert table.next_to_go(Drop.CONNECTIONS, "c") is None


@pytest.mark.parametrize(
    ("stage", "seconds"), [(Stage.HEAD, 10), (Stage.BODY, 20), (Stage.READER, 20), (Stage.IDLE, 40)]
)
def test_each_stage_has_its_time(table: ConnectionTable, stage: Stage, seconds: int) -> None:
    connection = entered(table, "a", 100)
    table.move(connection, stage, 103)
    assert table.late(102 + seconds) == []
    assert table.late(103 + seconds) == [(connection, stage)]
    table.move(connection, None, 110)
    assert table.late(1e9) == []
    table.leave(connection)
    # What has left stays away.
    table.move(connection, stage, 120)
    assert table.late(1e9) == [] and len(table) == 0


def test_probes_have_places_of_their_own(table: ConnectionTable) -> None:
    for now in range(4):
        table.move(entered(table, f"a{now}", now), None, now)
    probes: list[Any] = [Connection("p", only_probes=True) for _ in range(PROBE_PLACES)]
    assert table.probe_to_go() is None
    for probe in probes:
        assert table.has_probe_place
        table.enter(probe, 5)
    assert not table.has_probe_place and table.probe_to_go() is probes[0]
    # They count neither for their address nor for all, and give no way to others.
    assert table.too_many("p") is Drop.CONNECTIONS
    assert table.next_to_go(Drop.CONNECTIONS, "p") is None
    table.move(probes[0], None, 6)
    assert table.probe_to_go() is probes[1]
    table.leave(probes[0])
    assert table.has_probe_place


def test_of_too_many_unread_answers_the_oldest_go(table: ConnectionTable) -> None:
    readers = [entered(table, "a", now) for now in range(3)]
    for now, reader in enumerate(readers):
        reader.unsent = 100
        table.move(reader, Stage.READER, now)
    assert table.unread(300) == []
    assert table.unread(299) == readers[:1]
    assert table.unread(150) == table.unread(50) == [readers[1], readers[0]]


def test_a_body_is_slow_after_a_while(table: ConnectionTable) -> None:
    first, second = entered(table, "a", 100), entered(table, "a", 100)
    table.move(first, Stage.BODY, 101)
    table.move(second, Stage.BODY, 102)
    assert table.slow_body(110) is None
    assert table.slow_body(111) is table.slow_body(120) is first
    table.move(first, None, 120)
    assert table.slow_body(120) is second
