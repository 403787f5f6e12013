"""A client that calls and expects the right answer each time, whatever others do."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc

from tests.attacks.attacker import Attacker, Footprint, Served, Target
from tests.attacks.grpc_attacks import Attack
from tests.support.waiting import until

# A server that stops answers none; one that is slowed answers these in far less.
_CALLS, _CALL_SECONDS = 30, 60.0
_PAUSE_SECONDS = 0.002


class HonestClient:
    """Two threads: one keeps its connection, the other makes one a call."""

    def __init__(self, target: Target, expected: bytes) -> None:
        self._target, self._expected = target, expected
        self._stop = threading.Event()
        self.right = {"kept": 0, "new": 0}
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(kind,), daemon=True) for kind in self.right
        ]

    def __enter__(self) -> "HonestClient":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def answered(self, more: int) -> None:
        """Waits until each thread has had more right answers.

        Raises:
            AssertionError: a call failed, or nothing comes any more.
        """
        wanted = {kind: count + more for kind, count in self.right.items()}
        until(
            lambda: self.failures or all(self.right[k] >= wanted[k] for k in wanted),
            "the honest client is answered",
            4 * _CALL_SECONDS,
        )
        assert not self.failures, self.failures[:5]

    def _run(self, kind: str) -> None:
        with grpc_channel(self._target) as kept:
            while not self._stop.wait(_PAUSE_SECONDS):
                try:
                    if kind == "kept":
                        answer = call(kept, self._target)
                    else:
                        with grpc_channel(self._target) as channel:
                            answer = call(channel, self._target)
                except grpc.RpcError as error:
                    self.failures.append(f"{kind}: {error.code()}: {error.details()}")
                    continue
                if answer == self._expected:
                    self.right[kind] += 1
                else:
                    self.failures.append(f"{kind}: a wrong answer")


def grpc_channel(target: Target) -> grpc.Channel:
    """A channel with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if target.credentials is not None:
        return grpc.secure_channel(target.address, target.credentials, options)
    return grpc.insecure_channel(target.address, options=options)


def call(channel: grpc.Channel, target: Target) -> bytes:
    """The answer to the target's good call."""
    ask = channel.unary_unary(target.path.decode())
    answer: bytes = ask(target.message, timeout=_CALL_SECONDS)
    return answer


@contextmanager
def beside_an_honest_client(served: Served) -> Iterator[HonestClient]:
    """An honest client that has no failure in all that time; the server then is as before."""
    with HonestClient(served.target, served.answer) as honest:
        honest.answered(_CALLS)
        before = Footprint.of(served.pid)
        yield honest
        honest.answered(_CALLS)
    now = [before]

    def is_back() -> bool:
        now[0] = Footprint.of(served.pid)
        return now[0].is_about(before)

    until(is_back, f"{before} again, not {now}")


def withstand(served: Served, *attacks: Attack) -> None:
    """Attacks a server, by one client for each attack, beside an honest one."""
    with beside_an_honest_client(served) as honest, ExitStack() as stack:
        attackers = [stack.enter_context(Attacker(served.target, attack)) for attack in attacks]
        for attacker in attackers:
            until(attacker.struck.is_set, "the attack has been made", 120.0)
        honest.answered(_CALLS)
