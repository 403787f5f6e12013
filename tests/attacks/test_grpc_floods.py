"""gRPC clients that flood, stall or hold calls, beside one that is always answered."""

import pytest

from tests.attacks.attacker import Served
from tests.attacks.grpc_attacks import FLOODS, UNFINISHED
from tests.attacks.honest_client import withstand

ATTACKS = UNFINISHED | FLOODS


@pytest.mark.parametrize("attack", ATTACKS)
def test_others_are_answered_and_nothing_is_left_behind(served: Served, attack: str) -> None:
    withstand(served, ATTACKS[attack])
