"""Medians of variants in turns, so that a slow phase of the machine affects all alike."""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch

from serving.bench.load.process import split_cpus
from sharded_infer.progress import Progress, no_progress

_V = TypeVar("_V")
_K = TypeVar("_K", bound=Hashable)

Parts = dict[str, float]


@contextmanager
def one_core() -> Iterator[None]:
    """Keep the calling thread on the server's core, with one intra-op thread, in the context."""
    cpus, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, split_cpus()[0])
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cpus)


def seconds_of(call: Callable[[], object]) -> float:
    """Measure the seconds of a call."""
    began = perf_counter()
    call()
    return perf_counter() - began


def timed(call: Callable[[], object]) -> Parts:
    """Measure a call that has one part, `seconds`."""
    return {"seconds": seconds_of(call)}


@dataclass(frozen=True, slots=True)
class Turns:
    """Rounds of turns, the seconds of a turn, and where progress is reported."""

    rounds: int
    seconds: float
    progress: Progress = no_progress

    def of(
        self, variants: Mapping[_K, Callable[[int], _V]], what: str = "measuring"
    ) -> dict[_K, list[_V]]:
        """Results of variants, called with the round's number, forwards and backwards in turn."""
        results: dict[_K, list[_V]] = {name: [] for name in variants}
        forwards = list(variants)
        for number in range(self.rounds):
            order = forwards if number % 2 == 0 else forwards[::-1]
            for place, name in enumerate(order, number * len(order) + 1):
                results[name].append(variants[name](number))
                self.progress(what, place, self.rounds * len(order))
        return results

    def medians(
        self, variants: Mapping[_K, Callable[[], Parts]], *, least_calls: int = 1
    ) -> dict[_K, Parts]:
        """Medians over the rounds of each round's medians of the parts that a call returns.

        A variant's turn takes its seconds, with the preparation of its calls, and at least
        `least_calls`.
        """

        def turn(call: Callable[[], Parts], _: int) -> Parts:
            calls: list[Parts] = []
            until = perf_counter() + self.seconds
            while perf_counter() < until or len(calls) < least_calls:
                calls.append(call())
            return medians(calls)

        rounds = self.of({name: partial(turn, call) for name, call in variants.items()})
        return {name: medians(turns) for name, turns in rounds.items()}


def medians(measured: Sequence[Parts]) -> Parts:
    """Median of each part."""
    return {part: median(one[part] for one in measured) for part in measured[0]}


def median_rates(
    variants: Mapping[str, Callable[[], tuple[Callable[[], object], int]]],
    generator: np.random.Generator,
    *,
    seconds: float,
    least_rounds: int,
    progress: Progress = no_progress,
) -> dict[str, float]:
    """Median rates of variants that are called once a round, in random order, for `seconds` in all.

    A variant prepares a call, unmeasured, and returns the call and the amount of its work.
    """
    rates: dict[str, list[float]] = {name: [] for name in variants}
    spent, rounds = 0.0, 0
    while spent < seconds or rounds < least_rounds:
        for name in generator.permutation(list(variants)):
            call, work = variants[name]()
            took = seconds_of(call)
            spent += took
            rates[name].append(work / took)
        rounds += 1
        progress("measuring", min(int(spent), int(seconds)), int(seconds))
    return {name: median(of_one) for name, of_one in rates.items()}
