from serving.security.rate_limit import RateLimit


def test_a_client_has_its_burst_at_once_and_its_rate_after() -> None:
    limit = RateLimit(10.0, burst=3)
    assert [limit.take("a", 0.0) for _ in range(3)] == [0, 0, 0]
    assert limit.take("a", 0.0) == 0.1
    assert limit.take("a", 0.05) > 0
    assert limit.take("a", 0.1) == 0
    # A long silence fills the bucket, and no more.
    assert [limit.take("a", 100.0) > 0 for _ in range(4)] == [False, False, False, True]


def test_clients_do_not_share() -> None:
    limit = RateLimit(1.0, burst=1)
    assert limit.take("a", 0.0) == limit.take("b", 0.0) == 0
    assert limit.take("a", 0.0) > 0


def test_of_too_many_clients_the_one_silent_longest_is_forgotten() -> None:
    limit = RateLimit(1e-6, burst=1, most_clients=2)
    for client in ("a", "b", "a", "c"):
        limit.take(client, 0.0)
    assert limit.take("a", 0.0) > 0
    assert limit.take("b", 0.0) == 0
