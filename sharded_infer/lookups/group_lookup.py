"""Groups of features whose results come from other hosts, or from a forced backend, in parts."""

from collections.abc import Iterator
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags
from sharded_infer.lookups.lookup_group import Group, choose, merge
from sharded_infer.lookups.lookup_work import StepWork
from sharded_infer.lookups.shard_hosts import ChosenBags
from sharded_infer.lookups.steps import Part, RemoteStep
from sharded_infer.tensors import tensor_of


class GroupLookup:
    """Results of one group's steps, until all are there to be merged.

    Attributes:
        work: of the steps of other hosts, and of a forced backend, with the seconds of this thread.
        saved: their rows that are not looked up because samples share a bag.
    """

    def __init__(self, group: Group) -> None:
        self.group, self.plan = group, group.plan
        self.work: list[StepWork] = []
        self.saved = 0
        here = [step.part for step in self.plan.steps if step.part.is_split]
        self._results: list[tuple[Part, Tensor]] = list(zip(here, group.apart, strict=False))
        # By position in the group: bool `[R]`, bags that take the default row.
        self._lost: dict[int, Tensor] = {}
        # By position in the group: int64 `[R]`, ids of each bag that a host's id map lacks.
        self._unknown: dict[int, NDArray[np.int64]] = {}

    def sample_of(self, bag: int) -> int:
        """Sample of a bag; the request, where samples share it."""
        return int(np.searchsorted(self.group.firsts, bag, side="right")) - 1

    def ask(self) -> list[tuple[RemoteStep, ChosenBags]]:
        """Bags for other hosts, with ids relative to their pieces.

        A step without ids is answered here.
        """
        asked: list[tuple[RemoteStep, ChosenBags]] = []
        remote = self.plan.remote
        if not remote:
            return asked
        began = perf_counter()
        choices = choose(self.group, self.plan.remote_parts)
        seconds = (perf_counter() - began) / len(remote)
        for step, (chosen, row_bytes, saved) in zip(remote, choices, strict=True):
            if chosen.id_count:
                asked.append((step, chosen))
            else:
                self.answer(step, torch.zeros(chosen.bag_count, step.part.width))
            self.work.append((step.part.rank, chosen.id_count, row_bytes, seconds))
            self.saved += saved
        return asked

    def look_up(self) -> None:
        """Runs the steps of this process whose backend is forced, one after another."""
        if self.plan.is_compiled:
            return
        choices = choose(self.group, self.plan.own_parts)
        for step, (chosen, row_bytes, saved) in zip(self.plan.steps, choices, strict=True):
            began = perf_counter()
            self._results.append((step.part, step.lookup(chosen.bags(), ids_checked=True)))
            seconds = perf_counter() - began
            self.work.append((step.part.rank, chosen.id_count, row_bytes, seconds))
            self.saved += saved

    def answer(
        self, step: RemoteStep, pooled: Tensor, unknown: NDArray[np.int64] | None = None
    ) -> None:
        """Takes another host's result, fp32 `[R, width]`; `unknown` is as in `GroupAnswer`."""
        self._results.append((step.part, pooled))
        if unknown is not None:
            for entry in step.counted:
                position = step.part.features[entry]
                before = self._unknown.get(position)
                # Each part of a table's rows reports its own ids.
                self._unknown[position] = unknown[entry] + (0 if before is None else before)

    def may_lose(self, step: RemoteStep, chosen: ChosenBags) -> bool:
        """True if default rows can replace all bags that a step has `chosen`."""
        return _asked(step, chosen.bags()).keys() <= self.plan.defaults.keys()

    def lose(self, step: RemoteStep, chosen: ChosenBags) -> None:
        """Takes default rows for a failed step; arguments as `may_lose`."""
        self.answer(step, torch.zeros(chosen.bag_count, step.part.width))
        for position, bags in _asked(step, chosen.bags()).items():
            before = self._lost.get(position)
            self._lost[position] = bags if before is None else bags | before

    def defaults(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Tables whose default rows were taken, and bool `[B]`, the samples that took them."""
        samples, repeats = self.group.samples, self.group.repeats
        for position, lost in self._lost.items():
            bags = np.logical_or.reduceat(lost.numpy(), self.group.firsts)
            if len(bags) != samples:
                bags = bags.repeat(samples if repeats is None else repeats)
            yield self.plan.defaults[position].table.name, bags

    def unknown(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Tables, and int64 `[B]`, raw ids that hosts did not know, as `LookupWork.unknown`."""
        samples, repeats = self.group.samples, self.group.repeats
        for position, of_bags in self._unknown.items():
            counts = of_samples = np.add.reduceat(of_bags, self.group.firsts)
            if len(of_samples) != samples:
                counts = np.zeros(samples, np.int64)
                firsts = [0] if repeats is None else np.cumsum(repeats) - repeats
                counts[firsts] = of_samples
            yield self.plan.features[position].table.name, counts

    def finish(self) -> None:
        """Merges all results in the plan's order, so sums have the same bits everywhere."""
        group = self.group
        if self.plan.is_merged:
            merge(group, self._results, self._pooled_lengths())
        is_spread = group.bags.lengths.shape[1] != group.out.shape[0]
        spread = group.repeats if is_spread else None
        repeats = None if spread is None else tensor_of(spread)
        for position, lost in self._lost.items():
            self.plan.defaults[position].write(group.bags, lost, repeats, group.out)

    def _pooled_lengths(self) -> Tensor | None:
        """Lengths of the bags without the raw ids that other hosts left out; None: as they are."""
        lengths: Tensor | None = None
        for position, unknown in self._unknown.items():
            id_map = self.plan.features[position].table.id_map
            if id_map is not None and id_map.unknown == "zero":
                lengths = self.group.bags.lengths.clone() if lengths is None else lengths
                lengths[position] -= torch.from_numpy(unknown)
        return lengths


def _asked(step: RemoteStep, chosen: Bags) -> dict[int, Tensor]:
    """By feature of the group: bool `[R]`, the bags that have ids in the step."""
    asked: dict[int, Tensor] = {}
    for position, bags in zip(step.part.features, chosen.lengths > 0, strict=True):
        if bags.any():
            asked[position] = bags | asked.get(position, bags)
    return asked
