"""gRPC clients that flood, stall or hold calls, beside one that is always answered."""

import pytest

from tests.attacks.attacker import Served
from tests.attacks.grpc_attacks import FLOODS, UNFINISHED
from tests.attacks.honest_client import withstand

ATTACKS = UNFINISHED | FLOODS
# Three at once, each of another kind.
GROUPS = [tuple(ATTACKS)[first::11] for first in range(11)]


@pytest.mark.parametrize("attacks", GROUPS, ids=" + ".join)
def test_others_are_answered_and_nothing_is_left_behind(
    served: Served, attacks: tuple[str, ...]
) -> None:
    withstand(served, *(ATTACKS[attack] for attack in attacks))
