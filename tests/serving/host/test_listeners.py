import socket
from contextlib import ExitStack, closing
from typing import Any

import pytest

from serving.host.listeners import hold_port, listen_on
from sharded_infer.errors import InputError

FOUR, SIX = ("127.0.0.1", 0), ("::1", 0, 0, 0)
# Of a network for documentation, which no machine has (RFC 5737).
ABSENT = ("192.0.2.1", 0)


def resolve(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[Any, ...]) -> None:
    found = [
        (socket.AF_INET if len(one) == 2 else socket.AF_INET6, socket.SOCK_STREAM, 6, "", one)
        for one in addresses
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def bound_to(sockets: "list[socket.socket] | tuple[socket.socket, ...]") -> set[tuple[str, int]]:
    return {one.getsockname()[:2] for one in sockets}


def test_a_name_is_listened_on_at_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, SIX, FOUR, FOUR)
    with ExitStack() as stack:
        made = listen_on("a-name", 0)
        for one in made:
            stack.enter_context(one)
            client = stack.enter_context(socket.socket(one.family))
            client.connect(one.getsockname())
        port = made[0].getsockname()[1]
        assert port > 0 and bound_to(made) == {("::1", port), ("127.0.0.1", port)}
        with pytest.raises(InputError, match=f"port a-name:{port} cannot be had"):
            listen_on("a-name", port)


def test_an_address_that_this_machine_has_not_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, ABSENT, FOUR)
    (made,) = listen_on("a-name", 0)
    with made:
        assert made.getsockname()[0] == "127.0.0.1"
    resolve(monkeypatch, ABSENT)
    with pytest.raises(InputError, match="port a-name:8001 cannot be had: Cannot assign"):
        listen_on("a-name", 8001)


def test_a_port_that_one_address_has_not_is_not_had_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, FOUR, SIX)
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        for take in (listen_on, hold_port):
            with pytest.raises(InputError, match=f"port a-name:{port} cannot be had"):
                take("a-name", port)
        # Nothing is left on the other address.
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_is_held_on_all_addresses_and_shared_with_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve(monkeypatch, FOUR, SIX)
    with closing(hold_port("a-name", 0)) as held, ExitStack() as stack:
        assert bound_to(held.sockets) == {("127.0.0.1", held.port), ("::1", held.port)}
        for _ in range(2):
            for one in listen_on("a-name", held.port, share_port=True):
                stack.enter_context(one)


def test_a_name_that_is_none_is_refused_and_named() -> None:
    with pytest.raises(InputError, match=r"port no\.such\.name\.invalid:8001 cannot be had: "):
        listen_on("no.such.name.invalid", 8001)
    (made,) = listen_on("[::1]", 0)
    with made:
        assert made.getsockname()[0] == "::1"
