import pytest

from serving.http_api.connections.body_budget import BodyBudget
from serving.http_api.connections.limits import HttpLimits
from serving.http_api.exchange import HttpError

FREE = 256 * 1024


def test_large_bodies_leave_room_for_small_ones() -> None:
    budget = BodyBudget(HttpLimits(body_bytes=2**20))
    budget.hold(0, 256 * 2**20 + FREE)
    for _ in range(100):
        budget.hold(0, 1000)
        budget.hold(1000, FREE)
    with pytest.raises(HttpError, match="bodies of all requests"):
        budget.hold(FREE, FREE + 1)
    budget.release(FREE + 1)
    budget.hold(FREE, FREE)
    with pytest.raises(HttpError):
        budget.hold(0, FREE + 1)
