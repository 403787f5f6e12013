from random import Random

import pytest

from serving.protocol.lookups.lookup_messages import Described
from serving.protocol.lookups.version_key import VersionKey
from serving.remote_lookups.replica_group import (
    FIRST_LATE_SECONDS,
    HEDGE_SHARE,
    LEAST_LATE_SECONDS,
    MOST_CREDIT,
    MOST_EJECTED_SECONDS,
    MOST_FAILURES,
    Replica,
    ReplicaGroup,
)

FIRST = Described(VersionKey("m", 1, 7), "three", 1, "aa")
SECOND = Described(VersionKey("m", 2, 8), "three", 1, "aa")


def group_of(count: int) -> tuple[ReplicaGroup, list[Replica]]:
    replicas = [Replica(f"h:{number}") for number in range(1, count + 1)]
    return ReplicaGroup(1, replicas, Random(3)), replicas


def answer(group: ReplicaGroup, replica: Replica, now: float, seconds: float) -> None:
    replica.in_flight += 1
    group.answered(replica, now, seconds)


def fail(group: ReplicaGroup, replica: Replica, now: float, times: int = MOST_FAILURES) -> None:
    for _ in range(times):
        replica.in_flight += 1
        group.failed(replica, now)


def learned(group: ReplicaGroup, seconds: float = 0.01, lookups: int = 64) -> None:
    for _ in range(lookups):
        group.looked_up(seconds, 1, 1)


def begun(group: ReplicaGroup, now: float, wanted: Described | None = None) -> Replica:
    found = group.begin(now, wanted)
    assert found is not None
    group.withdrawn(found)
    return found


def test_of_two_the_one_with_fewer_calls_in_flight_is_asked() -> None:
    group, (one, two) = group_of(2)
    for _ in range(100):
        chosen = group.begin(0.0, None)
        assert chosen is not None and abs(one.in_flight - two.in_flight) <= 1
    assert one.in_flight == two.in_flight == 50


def test_of_two_the_quicker_is_asked_until_calls_outweigh_it() -> None:
    group, (one, two) = group_of(2)
    answer(group, one, 0.0, 0.001)
    answer(group, two, 0.0, 0.0035)
    chosen = [group.begin(0.0, None) for _ in range(4)]
    assert chosen == [one, one, one, two]


def test_the_latency_of_a_replica_that_is_not_asked_is_forgotten() -> None:
    group, (one, two) = group_of(2)
    answer(group, one, 0.0, 0.001)
    answer(group, two, 0.0, 0.05)
    assert begun(group, 0.0) is one
    for second in range(60):
        answer(group, one, float(second), 0.001)
    assert begun(group, 60.0) is two


def test_failures_in_a_row_eject_a_replica_until_a_check_succeeds_after_its_time() -> None:
    group, (one, two) = group_of(2)
    fail(group, one, 10.0, MOST_FAILURES - 1)
    answer(group, one, 10.0, 0.001)
    fail(group, one, 10.0, MOST_FAILURES - 1)
    assert not one.is_ejected
    fail(group, one, 10.0, 1)
    assert one.is_ejected and group.counts.ejections == 1
    assert {begun(group, 10.5) for _ in range(50)} == {two}
    group.checked(one, 10.9, frozenset())
    assert one.is_ejected
    # Without a check it is not asked, however much time has passed.
    assert {begun(group, 50.0) for _ in range(50)} == {two}
    group.checked(one, 50.0, frozenset({FIRST}))
    assert not one.is_ejected and one in {begun(group, 50.0) for _ in range(50)}


def test_each_ejection_is_longer_until_the_replica_stays_well() -> None:
    group, (one, _) = group_of(2)
    seconds, now = [], 0.0
    for _ in range(8):
        fail(group, one, now)
        seconds.append(one.ejected_until - now)
        now = one.ejected_until
        group.checked(one, now, frozenset())
        assert not one.is_ejected
    assert seconds == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    answer(group, one, now + MOST_EJECTED_SECONDS + 1.0, 0.001)
    fail(group, one, now + MOST_EJECTED_SECONDS + 2.0)
    assert one.ejected_seconds == 1.0


def test_checks_that_fail_eject_a_replica_and_lengthen_its_ejection() -> None:
    group, (one, _) = group_of(2)
    for second in range(MOST_FAILURES):
        assert not one.is_ejected
        group.checked(one, float(second), None)
    until = one.ejected_until
    group.checked(one, until - 0.5, None)
    assert one.is_ejected and one.ejected_until == until
    group.checked(one, until, None)
    assert one.ejected_until == until + 2.0
    assert group.counts.ejections == 1


def test_the_last_replica_is_never_ejected() -> None:
    group, (one, two) = group_of(2)
    fail(group, one, 0.0)
    fail(group, two, 0.0, 10 * MOST_FAILURES)
    assert one.is_ejected and not two.is_ejected
    alone, (single,) = group_of(1)
    fail(alone, single, 0.0, 10 * MOST_FAILURES)
    assert begun(alone, 0.0) is single


def test_an_ejected_replica_is_asked_where_no_other_holds_the_version() -> None:
    group, (one, two) = group_of(2)
    group.checked(one, 0.0, frozenset({FIRST, SECOND}))
    group.checked(two, 0.0, frozenset({FIRST}))
    fail(group, one, 0.0)
    assert begun(group, 0.0, FIRST) is two
    assert begun(group, 0.0, SECOND) is one


def test_an_ejected_replica_that_answers_checks_is_asked_once_the_other_is_silent() -> None:
    group, (one, two) = group_of(2)
    for _ in range(20 * MOST_FAILURES):
        begun(group, 0.0)
    now = 0.0
    for _ in range(6):
        fail(group, one, now)
        now = one.ejected_until
        group.checked(one, now, None)
    # It is ready again, long before its ejection ends. Then the other stops.
    now += 1.0
    group.checked(one, now, frozenset())
    assert one.is_ejected and one.ejected_until > now + 20.0
    for _ in range(MOST_FAILURES):
        assert group.begin(now, None) is two
        assert group.hedge(now, None, [two]) is one
        group.lost(two, now, 0.1)
        group.answered(one, now, 0.01)
    assert {begun(group, now) for _ in range(50)} == {one}
    group.checked(two, now, frozenset())
    assert {begun(group, now) for _ in range(50)} == {two}, "an ejection is still a preference"


def test_only_replicas_that_hold_the_version_are_asked() -> None:
    group, (one, two) = group_of(2)
    assert {begun(group, 0.0, SECOND) for _ in range(50)} == {one, two}
    group.checked(one, 0.0, frozenset({FIRST}))
    group.checked(two, 0.0, frozenset({FIRST, SECOND}))
    assert {begun(group, 0.0, SECOND) for _ in range(50)} == {two}
    chosen = group.begin(0.0, SECOND)
    assert chosen is two
    group.dropped(two, SECOND)
    assert group.begin(0.0, SECOND) is None
    assert group.retry(0.0, FIRST, [one]) is two
    # Another release numbers its pieces otherwise.
    other = FIRST._replace(digest="bb")
    assert group.begin(0.0, other) is None


def test_a_lookup_is_late_beside_the_last_ones() -> None:
    group, _ = group_of(2)
    learned(group, 0.01, 16)
    assert group.late_after() == FIRST_LATE_SECONDS
    learned(group, 0.01, 240)
    assert group.late_after() == pytest.approx(0.0125)
    # A twentieth of them is late, and says nothing of the others.
    for number in range(256):
        group.looked_up(0.5 if number % 25 == 0 else 0.01, 1, 1)
    assert group.late_after() == pytest.approx(0.0125)
    learned(group, 0.02, 256)
    assert group.late_after() == pytest.approx(0.025)
    learned(group, 0.00001, 256)
    assert group.late_after() == LEAST_LATE_SECONDS


def test_late_lookups_are_asked_again_for_a_twentieth_of_all_at_most() -> None:
    group, (one, two) = group_of(2)
    # A silent replica is ejected by as many.
    assert [group.hedge(0.0, None, [one]) for _ in range(MOST_FAILURES + 1)][-2:] == [two, None]
    group.counts.hedges = hedges = 0
    for _ in range(2000):
        first = group.begin(0.0, None)
        assert first is not None
        extra = group.hedge(0.0, None, [first])
        if extra is not None:
            assert extra is (two if first is one else one)
            hedges += 1
            group.withdrawn(extra)
        group.withdrawn(first)
    assert hedges == group.counts.hedges
    assert 0.9 * HEDGE_SHARE * 2000 <= hedges <= HEDGE_SHARE * 2000


def test_a_quiet_time_leaves_credit_for_a_bounded_number_of_hedges() -> None:
    group, (one, _) = group_of(2)
    for _ in range(100_000):
        begun(group, 0.0)
    extra = [group.hedge(0.0, None, [one]) for _ in range(200)]
    assert len([chosen for chosen in extra if chosen is not None]) == MOST_CREDIT


def test_a_lookup_of_a_replica_that_is_ejected_meanwhile_is_asked_again_without_credit() -> None:
    group, (one, two) = group_of(2)
    fail(group, one, 0.0)
    assert group.hedge(0.0, None, [one]) is two
    assert (group.counts.hedges, group.counts.retries) == (0, 1)
    # Nobody is asked twice.
    assert group.hedge(0.0, None, [one, two]) is None


def test_hedges_that_are_lost_in_a_row_eject_a_replica_that_never_answers() -> None:
    group, (one, two) = group_of(2)
    answer(group, one, 9.9, 0.01)
    for now in (10.0, 10.2):
        for _ in range(MOST_FAILURES):
            assert not one.is_ejected
            one.in_flight += 1
            group.lost(one, now, 0.02)
            answer(group, two, now, 0.01)
    assert one.is_ejected and one.in_flight == 0


def test_a_group_with_other_replicas_goes_on_with_what_is_known() -> None:
    group, (one, two) = group_of(2)
    learned(group)
    fail(group, one, 0.0)
    later = group.with_replicas([one, Replica("h:3")])
    assert later.late_after() == group.late_after()
    assert later.counts.ejections == 1 and one.is_ejected
    assert two not in {begun(later, 0.0) for _ in range(50)}


def test_a_host_is_lost_when_no_replica_answers_lookups_or_checks() -> None:
    group, (one, two) = group_of(2)
    fail(group, one, 0.0)
    assert one.is_ejected and not group.is_lost()
    fail(group, two, 0.0, MOST_FAILURES - 1)
    assert not group.is_lost()
    group.checked(two, 1.0, None)
    # The last one is not ejected, and yet silent.
    assert group.is_lost() and not two.is_ejected
    # It is still left alone, and could answer.
    group.checked(one, 0.5, frozenset())
    assert one.is_ejected and not group.is_lost()
    group.checked(one, 0.6, None)
    assert group.is_lost()
    answer(group, two, 2.0, 0.001)
    assert not group.is_lost()
