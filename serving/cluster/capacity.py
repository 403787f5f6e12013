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
    for process in sorted(wanted, key=lambda process: process.memory, reverse=True):
        taken: set[int] = set()
        for placed in range(process.count):
            fitting = [
                number
                for number, room in enumerate(left)
                if room.memory >= process.memory
                and room.cpus >= process.cpus
                and number not in taken
            ]
            if not fitting:
                return _words(process, left, placed)
            best = min(fitting, key=lambda number: left[number].memory)
            left[best] = replace(
                left[best],
                memory=left[best].memory - process.memory,
                cpus=left[best].cpus - process.cpus,
            )
            if process.apart:
                taken.add(best)
    return None


def _words(process: Wanted, rooms: Sequence[Room], placed: int) -> str:
    most = max((room.memory for room in rooms), default=0)
    if most < process.memory and not placed:
        free = size_text(most)
        return (
            f"{process.name} wants {size_text(process.memory)}, no node has more than {free} free"
        )
    cpus = max((room.cpus for room in rooms), default=0)
    if cpus < process.cpus and not placed:
        return f"{process.name} wants {process.cpus:g} CPUs, no node has more than {cpus:g} free"
    each = f"{size_text(process.memory)} and {_counted_cpus(process.cpus)}"
    if process.apart:
        return (
            f"{process.name} wants {counted(process.count, 'node')} with {each} free each, "
            f"only {placed} of {len(rooms)} {'has' if placed == 1 else 'have'} that"
        )
    return f"{process.name} wants {process.count} times {each}, which the nodes do not have free"


def _counted_cpus(cpus: float) -> str:
    return f"{cpus:g} CPU{'' if cpus == 1 else 's'}"
