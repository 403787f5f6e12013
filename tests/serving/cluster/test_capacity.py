import pytest

from serving.cluster.capacity import Room, Wanted, misfit

GB = 10**9


def host(number: int, memory: int, *, count: int = 1, cpus: float = 1) -> Wanted:
    return Wanted(f"host {number}", count, memory * GB, cpus, apart=True)


def rooms(*memory: int, cpus: float = 4) -> list[Room]:
    return [Room(one * GB, cpus) for one in memory]


@pytest.mark.parametrize(
    ("wanted", "free", "words"),
    [
        ([host(3, 20)], rooms(16, 8), "host 3 wants 20.0 GB, no node has more than 16.0 GB free"),
        ([host(3, 20)], [], "host 3 wants 20.0 GB, no node has more than 0 B free"),
        ([host(1, 2, cpus=8)], rooms(16), "host 1 wants 8 CPUs, no node has more than 4 free"),
        (
            [host(2, 10, count=3)],
            rooms(16, 12, 8),
            "host 2 wants 3 nodes with 10.0 GB and 1 CPU free each, only 2 of 3 have that",
        ),
        (
            [host(2, 10, count=2, cpus=2)],
            rooms(40),
            "host 2 wants 2 nodes with 10.0 GB and 2 CPUs free each, only 1 of 1 has that",
        ),
        (
            [host(1, 10), Wanted("front", 3, 2 * GB, 1, apart=False)],
            rooms(15),
            "front wants 3 times 2.00 GB and 1 CPU, which the nodes do not have free",
        ),
        ([host(1, 10), host(2, 8)], rooms(16), "host 2 wants 8.00 GB, no node has more than 6.00"),
    ],
)
def test_what_does_not_fit_is_named_with_what_is_free(
    wanted: list[Wanted], free: list[Room], words: str
) -> None:
    found = misfit(wanted, free)
    assert found is not None and found.startswith(words)


def test_what_fits_is_not_complained_of() -> None:
    assert misfit([], []) is None
    wanted = [host(1, 4, count=2), host(2, 10, count=2)]
    front = Wanted("front", 3, 2 * GB, 1, apart=False)
    assert misfit([*wanted, front], rooms(17, 19)) is None
