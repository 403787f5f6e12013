"""Explanations of processes that fit no machine of a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """Guess the first process that fits nowhere, the largest placed first where least is left."""
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
            room = left[best]
            left[best] = Room(room.memory - process.memory, room.cpus - process.cpus)
            if process.apart:
                taken.add(best)
    return None


def _words(process: Wanted, rooms: Sequence[Room], placed: int) -> str:
    memory = max((room.memory for room in rooms), default=0)
    if memory < process.memory and not placed:
        wanted, free = size_text(process.memory), size_text(memory)
        return f"{process.name} wants {wanted}, no node has more than {free} free"
    cpus = max((room.cpus for room in rooms), default=0)
    if cpus < process.cpus and not placed:
        return f"{process.name} wants {process.cpus:g} CPUs, no node has more than {cpus:g} free"
    noun = "CPU" if process.cpus == 1 else "CPUs"
    each = f"{size_text(process.memory)} and {process.cpus:g} {noun}"
    if process.apart:
        return (
            f"{process.name} wants {counted(process.count, 'node')} with {each} free each, "
            f"only {placed} of {len(rooms)} {'has' if placed == 1 else 'have'} that"
        )
    return f"{process.name} wants {process.count} times {each}, which the nodes do not have free"
