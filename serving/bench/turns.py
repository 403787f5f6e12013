"""Medians of variants in turns, so that a slow phase of the machine affects all alike."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

import numpy as np

from sharded_infer.progress import Progress, no_progress

_V = TypeVar("_V")
_K = TypeVar("_K", bound=str)

Parts = dict[str, float]
_WHOLE = "whole"


def seconds_of(call: Callable[[], object]) -> float:
    """Measure the seconds of a call."""
    began = perf_counter()
    call()
    return perf_counter() - began


def in_turns(variants: Sequence[_V], rounds: int) -> Iterator[_V]:
    """Yield each variant once a round, forwards and backwards."""
    for number in range(rounds):
        yield from variants if number % 2 == 0 else reversed(variants)


def medians_in_turns(
    variants: Mapping[_K, Callable[[], Parts]],
    *,
    rounds: int,
    seconds: float,
    least_calls: int = 1,
    progress: Progress = no_progress,
) -> dict[_K, Parts]:
    """Medians over the rounds of each round's medians of the parts that a call returns.

    A variant's turn takes `seconds`, with the preparation of its calls, and at least `least_calls`.
    """
    found: dict[_K, list[Parts]] = {name: [] for name in variants}
    for done, name in enumerate(in_turns(list(variants), rounds)):
        calls: list[Parts] = []
        until = perf_counter() + seconds
        while perf_counter() < until or len(calls) < least_calls:
            calls.append(variants[name]())
        found[name].append(_medians(calls))
        progress("measuring", done + 1, rounds * len(variants))
    return {name: _medians(of_rounds) for name, of_rounds in found.items()}


def median_seconds(
    variants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    seconds: float,
    progress: Progress = no_progress,
) -> dict[str, float]:
    """Medians over the rounds of each round's median seconds of a call."""
    calls = {name: partial(_whole, call) for name, call in variants.items()}
    found = medians_in_turns(calls, rounds=rounds, seconds=seconds, progress=progress)
    return {name: parts[_WHOLE] for name, parts in found.items()}


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


def _whole(call: Callable[[], object]) -> Parts:
    return {_WHOLE: seconds_of(call)}


def _medians(calls: Sequence[Parts]) -> Parts:
    return {part: median(call[part] for call in calls) for part in calls[0]}
