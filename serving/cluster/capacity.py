"""Explanations of processes that fit no machine of a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels.wording import counted
from sharded_infer.byte_sizes import size_text


@dataclass(frozen=True, slots=True)
class Wanted:
    """Equal processes, with bytes and processors of each; `apart`: on different machines."""

    name: str
    count: int
    memory: int
    cpus: float
    apart: bool


@dataclass(frozen=True, slots=True)
class Room:
    """Free bytes and processors of a machine."""

    memory: int
    cpus: float


def misfit(wanted: Sequence[Wanted], rooms: Sequence[Room]) -> str | None:
    """Name the first process that fits nowhere, placing the largest first where least is left over.

    This is a guess, not a search: use it for processes that could not be placed.
    """
    left = list(rooms)
    for one in sorted(wanted, key=lambda one: one.memory, reverse=True):
        taken: set[int] = set()
        for placed in range(one.count):
            fitting = [
                number
                for number, room in enumerate(left)
                if room.memory >= one.memory and room.cpus >= one.cpus and number not in taken
            ]
            if not fitting:
                return _words(one, left, placed)
            best = min(fitting, key=lambda number: left[number].memory)
            left[best] = replace(
                left[best], memory=left[best].memory - one.memory, cpus=left[best].cpus - one.cpus
            )
            if one.apart:
                taken.add(best)
    return None


def _words(one: Wanted, rooms: Sequence[Room], placed: int) -> str:
    most = max((room.memory for room in rooms), default=0)
    if most < one.memory and not placed:
        free = size_text(most)
        return f"{one.name} wants {size_text(one.memory)}, no node has more than {free} free"
    cpus = max((room.cpus for room in rooms), default=0)
    if cpus < one.cpus and not placed:
        return f"{one.name} wants {one.cpus:g} CPUs, no node has more than {cpus:g} free"
    each = f"{size_text(one.memory)} and {_counted_cpus(one.cpus)}"
    if one.apart:
        return (
            f"{one.name} wants {counted(one.count, 'node')} with {each} free each, "
            f"only {placed} of {len(rooms)} {'has' if placed == 1 else 'have'} that"
        )
    return f"{one.name} wants {one.count} times {each}, which the nodes do not have free"


def _counted_cpus(cpus: float) -> str:
    return f"{cpus:g} CPU{'' if cpus == 1 else 's'}"
