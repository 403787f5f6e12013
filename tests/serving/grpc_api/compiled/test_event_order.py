import threading
from itertools import permutations

import pytest

from serving.abi.transport import EventKind
from serving.grpc_api.compiled.event_order import EventOrder
from serving.transport.events import Event

KINDS = (EventKind.OPENED, EventKind.MESSAGE, EventKind.HALF_CLOSED, EventKind.CANCELLED)


def event(call: int, place: int) -> Event:
    return Event(KINDS[place], call, 0, b"", "identity", (), "", None, place)


@pytest.mark.parametrize("fetched", list(permutations(range(4))), ids=str)
def test_events_are_taken_in_their_order_and_nothing_is_left(fetched: tuple[int, ...]) -> None:
    taken: list[tuple[int, int]] = []
    order = EventOrder(lambda event: taken.append((event.call, event.place)))
    for place in fetched:
        order.take(event(1, place))
        order.take(event(2, 3 - place))
    for call in (1, 2):
        assert [place for of, place in taken if of == call] == [0, 1, 2, 3]
    assert len(order) == 0


def test_an_event_waits_while_another_thread_takes_an_earlier_one() -> None:
    taken: list[int] = []
    begun, over = threading.Event(), threading.Event()

    def take(event: Event) -> None:
        if event.place == 0:
            begun.set()
            assert over.wait(60)
        taken.append(event.place)

    order = EventOrder(take)
    first = threading.Thread(target=order.take, args=(event(1, 0),))
    first.start()
    assert begun.wait(60)
    order.take(event(1, 1))
    assert taken == []
    # Other streams do not wait.
    order.take(event(2, 1))
    over.set()
    first.join()
    assert taken == [0, 1]
    assert len(order) == 2
