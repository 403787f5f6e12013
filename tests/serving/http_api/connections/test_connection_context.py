import asyncio

from serving.http_api.connections.body_budget import BodyBudget
from serving.http_api.connections.connection_context import ConnectionContext
from serving.http_api.connections.connection_table import ConnectionTable
from serving.http_api.connections.limits import HttpLimits
from serving.http_api.exchange import HttpAnswer


async def _answer(*_: object) -> HttpAnswer:
    raise NotImplementedError


async def _turns_of(count: int, failing: int) -> list[int]:
    """Turn of the loop in which each connection continues; one of them fails."""
    loop, limits = asyncio.get_running_loop(), HttpLimits()
    loop.set_exception_handler(lambda *_: None)
    context = ConnectionContext(
        loop,
        limits,
        _answer,
        True,
        lambda _: None,
        ConnectionTable(limits),
        BodyBudget(limits),
    )
    turns: list[int] = []
    turn = 0

    def go_on(number: int) -> None:
        turns.append(turn)
        if number == failing:
            raise ValueError

    for number in range(count):
        context.call_later(lambda number=number: go_on(number))  # type: ignore[misc]
    while len(turns) < count:
        await asyncio.sleep(0)
        turn += 1
        assert turn < 10 * count
    return turns


def test_a_few_go_on_in_a_turn_and_a_failure_stops_no_other() -> None:
    turns = asyncio.run(_turns_of(40, failing=3))
    assert turns == sorted(turns)
    assert max(map(turns.count, turns)) == 4 and len(set(turns)) == 10
