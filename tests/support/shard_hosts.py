"""Shard hosts of a lookup that are threads of this process."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from kernels.bags import Bags
from sharded_infer.errors import ShardedInferError, ShardHostError
from sharded_infer.lookups.shard_hosts import GroupAnswer, PieceBags, StartedLookup

Answer = Callable[[Sequence[PieceBags]], Sequence[Tensor]]


class ThreadedHosts:
    """Answers by host, computed no earlier than `finish` waits; groups travel as bytes.

    Events are "started", then "finished" or "cancelled", of each batch, `asked` its groups by host.
    """

    def __init__(self, answers: Mapping[int, Answer], threads: ThreadPoolExecutor) -> None:
        self.hosts = frozenset(answers)
        self.lost: frozenset[int] = frozenset()
        self.events: list[str] = []
        self.asked: list[Mapping[int, Sequence[PieceBags]]] = []
        self._answers, self._threads = answers, threads

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        self.events.append("started")
        arrived = {host: [travel(group) for group in groups] for host, groups in asked.items()}
        self.asked.append(arrived)
        return _Started(arrived, self._answers, self._threads, self.events, may_lose)


class _Started:
    def __init__(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        answers: Mapping[int, Answer],
        threads: ThreadPoolExecutor,
        events: list[str],
        may_lose: Collection[int],
    ) -> None:
        self._may_lose = may_lose
        self._events, self._wanted, self._is_cancelled = events, threading.Event(), False
        self._futures = {
            host: threads.submit(self._run, answers[host], groups) for host, groups in asked.items()
        }

    def _run(self, answer: Answer, groups: Sequence[PieceBags]) -> list[GroupAnswer]:
        self._wanted.wait()
        return [] if self._is_cancelled else [GroupAnswer(_sent(one)) for one in answer(groups)]

    def finish(self) -> Mapping[int, Sequence[GroupAnswer]]:
        self._events.append("finished")
        self._wanted.set()
        found = {}
        for host, future in self._futures.items():
            try:
                found[host] = future.result()
            except ShardedInferError as error:
                if host in self._may_lose:
                    continue
                raise ShardHostError(f"shard host {host}: {error}") from error
        return found

    def cancel(self) -> None:
        self._events.append("cancelled")
        self._is_cancelled = True
        self._wanted.set()


def travel(group: PieceBags) -> PieceBags:
    """The group read back from bytes, without the sender's memory."""
    weights = None if group.bags.weights is None else _sent(group.bags.weights)
    bags = Bags(_sent(group.bags.values), _sent(group.bags.lengths), weights)
    return PieceBags.of(np.frombuffer(group.pieces.tobytes(), np.int64), bags)


def _sent(tensor: Tensor) -> Tensor:
    array = tensor.numpy()
    return torch.from_numpy(np.frombuffer(bytearray(array), array.dtype).reshape(array.shape))
