"""Fused lookups of a group of features, each on one rank, and the merge of their results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.bags import Bags
from kernels.tiers.started_rows import StartedRows
from sharded_infer.lookups.default_rows import FeatureDefault
from sharded_infer.lookups.lookup_work import StepWork, rows_saved
from sharded_infer.lookups.rank_part import (
    BagChoice,
    ChosenBags,
    RankPart,
    divide_means,
    write_parts,
)
from sharded_infer.lookups.steps import RemoteStep, Step
from sharded_infer.specs.model_spec import FeatureSpec
from sharded_infer.tensors import tensor_of


@dataclass(frozen=True, slots=True)
class Route:
    """All work for one group of features.

    Attributes:
        summed_columns: (first column, end) of the features split by rows, adjacent ones joined.
        means: int64 `[n, 3]`: position in the group, first column and width of each of these with
            mean pooling; None: there is none.
        defaults: of the features whose tables have default rows, by position in the group.
        features: of the group, in order, where other hosts are used.
        own_bags, remote_bags: of `steps` and of `remote`.
        only_step: the only step, if it reads the group's bags as they are and writes all their
            columns.
    """

    steps: tuple[Step, ...]
    remote: tuple[RemoteStep, ...] = ()
    summed_columns: tuple[tuple[int, int], ...] = ()
    means: NDArray[np.int64] | None = None
    defaults: Mapping[int, FeatureDefault] = field(default_factory=dict)
    features: tuple[FeatureSpec, ...] = ()
    own_bags: BagChoice = field(init=False)
    remote_bags: BagChoice = field(init=False)
    only_step: Step | None = field(init=False)

    def __post_init__(self) -> None:
        merged = self.remote or self.summed_columns or self.means is not None
        step = self.steps[0] if len(self.steps) == 1 and not merged else None
        object.__setattr__(self, "only_step", step if step and step.is_plain else None)
        object.__setattr__(self, "own_bags", BagChoice([step.part for step in self.steps]))
        object.__setattr__(self, "remote_bags", BagChoice([step.part for step in self.remote]))


class Group(NamedTuple):
    """Bags of a group of features.

    Attributes:
        bags: R bags for each feature, of a sequence R times `places`. R is `samples`, or 1, if
            `repeats` is None.
        repeats: int64 `[R]`, samples that share each bag.
        pooled: fp32, a row for each bag or for each sample; written.
        places: bags of each sample.
    """

    route: Route
    bags: Bags
    repeats: NDArray[np.int64] | None
    pooled: Tensor
    samples: int
    places: int = 1

    @property
    def is_shared(self) -> bool:
        """True if samples share bags."""
        return self.bags.lengths.shape[1] != self.samples * self.places

    def saved_rows(self, chosen: Bags) -> int:
        """Rows of some of its bags that are not looked up because samples share them."""
        if not self.is_shared:
            return 0
        if self.repeats is None:
            # All samples share one bag.
            return chosen.values.shape[0] * (self.samples - 1)
        lengths = chosen.lengths.numpy()
        if self.places > 1:
            lengths = lengths.reshape(len(lengths), -1, self.places).sum(axis=2)
        return rows_saved(lengths, self.samples, self.repeats)


class GroupLookup:
    """Lookup of one group of features: its own ranks' steps, others' answers, the merge."""

    def __init__(self, group: Group, work: list[StepWork]) -> None:
        """Starts nothing; each step is appended to `work`, with the seconds of this thread."""
        self.route, self._bags, self._counts, self._pooled, self._samples, self._places = group
        self._group, self._work = group, work
        self._is_spread = self._bags.lengths.shape[1] != self._pooled.shape[0]
        repeats = self._counts if self._is_spread else None
        self._repeats = None if repeats is None else tensor_of(repeats)
        # Parts of rows wait here until all have arrived, each with its order.
        self._late: list[tuple[int, RankPart, Tensor]] = []
        # By position in the group: bool `[R]`, bags that take the default row.
        self._lost: dict[int, Tensor] = {}
        # By position in the group: int64 `[R]`, ids of each bag that a host's id map lacks.
        self._unknown: dict[int, NDArray[np.int64]] = {}
        # For each step: its bags and the bytes of their rows; and rows that are read from files.
        self._chosen: list[tuple[Bags, int]] = []
        self._rows: list[StartedRows | None] = []
        self._select_seconds = 0.0
        self.saved = 0  # rows not looked up because samples share a bag

    def sample_of(self, bag: int) -> int:
        """Sample of a bag; the request, where samples share it."""
        return bag // self._places

    def ask(self) -> list[tuple[RemoteStep, ChosenBags]]:
        """Bags for other hosts, with ids relative to their pieces.

        A step without ids is answered here.
        """
        asked: list[tuple[RemoteStep, ChosenBags]] = []
        remote = self.route.remote
        if not remote:
            return asked
        began = perf_counter()
        every = self.route.remote_bags.choose(self._bags)
        seconds = (perf_counter() - began) / len(remote)
        for step, (chosen, of_rows) in zip(remote, every, strict=True):
            if chosen.id_count:
                asked.append((step, chosen))
            else:
                self.answer(step, torch.zeros(chosen.bag_count, step.width))
            self._work.append((step.part.rank, chosen.id_count, of_rows, seconds))
            if self._group.is_shared:
                self.saved += self._group.saved_rows(chosen.bags())
        return asked

    def start(self) -> None:
        """Chooses the bags of this process's steps, and begins to read rows not in memory.

        `close` must follow.
        """
        steps, began = self.route.steps, perf_counter()
        every = self.route.own_bags.choose(self._bags)
        self._chosen = [
            (self._bags if step.part.reads_everything else chosen.bags(), of_rows)
            for step, (chosen, of_rows) in zip(steps, every, strict=True)
        ]
        self._rows = [
            step.lookup.start(bags) if step.lookup.tables.tiers else None
            for step, (bags, _) in zip(steps, self._chosen, strict=True)
        ]
        self._select_seconds = (perf_counter() - began) / max(1, len(steps))

    def close(self) -> None:
        """Releases rows that were read, or are still being read."""
        for rows in self._rows:
            if rows is not None:
                rows.close()

    def look_up(self, deadline: float) -> None:
        """Runs the steps of this process and writes their columns; requires `start`.

        Where another host has a part of the rows, all parts wait to be added in the plan's order.
        Raises RowReadError, naming the table, if rows cannot be read before the deadline.
        """
        for first, end in self.route.summed_columns:
            self._pooled[:, first:end] = 0.0
        for step, (chosen, of_rows), rows in zip(
            self.route.steps, self._chosen, self._rows, strict=True
        ):
            if rows is not None:
                rows.wait(deadline)
            # Without the wait: a rank is busy while it computes.
            began, part = perf_counter() - self._select_seconds, step.part
            out = None
            if part.only_run is not None and not self._is_spread:
                column, width = part.only_run
                # Torch takes a microsecond for a view.
                whole = width == self._pooled.shape[1]
                out = self._pooled if whole else self._pooled[:, column : column + width]
            result = step.lookup(chosen, ids_checked=True, out=out, rows=rows)
            if out is None:
                if self.route.remote and part.kept_rows is not None:
                    self._late.append((step.order, part, result))
                else:
                    write_parts([(part, result)], self._repeats, self._pooled)
            seconds = perf_counter() - began
            self._work.append((part.rank, chosen.values.shape[0], of_rows, seconds))
            self.saved += self._group.saved_rows(chosen)

    def answer(
        self, step: RemoteStep, pooled: Tensor, unknown: NDArray[np.int64] | None = None
    ) -> None:
        """Takes another host's result, fp32 `[R, step.width]`; `unknown` is as in `GroupAnswer`."""
        self._late.append((step.order, step.part, pooled))
        if unknown is not None:
            for entry in step.counted:
                position = int(step.part.positions[entry])
                before = self._unknown.get(position)
                # Each part of a table's rows reports its own ids.
                self._unknown[position] = unknown[entry] + (0 if before is None else before)

    def may_lose(self, step: RemoteStep, chosen: ChosenBags) -> bool:
        """True if default rows can replace all bags that a step has `chosen`."""
        return self._asked(step, chosen.bags()).keys() <= self.route.defaults.keys()

    def lose(self, step: RemoteStep, chosen: ChosenBags) -> None:
        """Takes default rows for a failed step; arguments as `may_lose`."""
        self.answer(step, torch.zeros(chosen.bag_count, step.width))
        for position, bags in self._asked(step, chosen.bags()).items():
            before = self._lost.get(position)
            self._lost[position] = bags if before is None else bags | before

    def defaults(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Tables whose default rows were taken, and bool `[B]`, the samples that took them."""
        for position, lost in self._lost.items():
            bags = np.logical_or.reduce(lost.numpy().reshape(-1, self._places), axis=1)
            if len(bags) != self._samples:
                bags = bags.repeat(self._samples if self._counts is None else self._counts)
            yield self.route.defaults[position].table.name, bags

    def unknown(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Tables, and int64 `[B]`, raw ids that hosts did not know, as `LookupWork.unknown`."""
        for position, of_bags in self._unknown.items():
            counts = of_samples = of_bags.reshape(-1, self._places).sum(axis=1)
            if len(of_samples) != self._samples:
                counts = np.zeros(self._samples, np.int64)
                firsts = [0] if self._counts is None else np.cumsum(self._counts) - self._counts
                counts[firsts] = of_samples
            yield self.route.features[position].table.name, counts

    def _asked(self, step: RemoteStep, chosen: Bags) -> dict[int, Tensor]:
        """By feature of the group: bool `[R]`, the bags that have ids in the step."""
        asked: dict[int, Tensor] = {}
        for position, bags in zip(step.part.positions.tolist(), chosen.lengths > 0, strict=True):
            if bags.any():
                asked[position] = bags | asked.get(position, bags)
        return asked

    def finish(self) -> None:
        """Adds waiting parts in the plan's order, so sums have the same bits everywhere."""
        if self._late:
            self._late.sort(key=itemgetter(0))
            parts = [(part, output) for _, part, output in self._late]
            write_parts(parts, self._repeats, self._pooled)
        if self.route.means is not None:
            divide_means(self._pooled_lengths(), self._repeats, self.route.means, self._pooled)
        for position, lost in self._lost.items():
            default = self.route.defaults[position]
            default.write(self._bags, lost, self._repeats, self._pooled)

    def _pooled_lengths(self) -> Tensor:
        """Lengths of the bags without the raw ids that other hosts left out."""
        lengths = self._bags.lengths
        for position, unknown in self._unknown.items():
            id_map = self.route.features[position].table.id_map
            if id_map is not None and id_map.unknown == "zero":
                lengths = lengths.clone() if lengths is self._bags.lengths else lengths
                lengths[position] -= torch.from_numpy(unknown)
        return lengths


def single_kernel_lookup(group: Group, work: list[StepWork]) -> int | None:
    """Looks a group up if one step of this process writes it all; `work` as of `GroupLookup`.

    Returns rows not looked up because samples share a bag; None if it takes more steps.
    """
    bags, pooled = group.bags, group.pooled
    step, (rows, width) = group.route.only_step, pooled.shape
    if step is None or bags.lengths.shape[1] != rows or step.part.only_run != (0, width):
        return None
    began, part = perf_counter(), step.part
    step.lookup.pool_into(bags, pooled)
    work.append((part.rank, bags.values.shape[0], part.bytes_of(bags), perf_counter() - began))
    return group.saved_rows(bags)
