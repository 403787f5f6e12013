"""Bags of a group of features, and the calls that look them up."""

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.abi import lookup_run as abi
from kernels.abi.tiers import MissingRow
from kernels.bags import Bags
from kernels.native_library import address_of
from kernels.tiers.row_tier import MOST_SECONDS, RowTier
from sharded_infer.errors import InternalError
from sharded_infer.lookups.lookup_plan import LookupPlan, Parts
from sharded_infer.lookups.lookup_work import StepWork
from sharded_infer.lookups.shard_hosts import ChosenBags
from sharded_infer.lookups.steps import Part, Step
from sharded_infer.tensors import tensor_of

# Ids or numbers above which copying takes half a millisecond, and releases the GIL.
_MANY = 1 << 18
_CHOSEN, _WORK = np.dtype(abi.LookupChosen), np.dtype(abi.LookupWork)


class Group:
    """Bags of a group of features, and the output of their lookup.

    Attributes:
        plan: of the group's features.
        values, lengths, weights: R bags for each feature, of a sequence R times `places`. R is
            `samples`, or 1, if `repeats` is None.
        repeats: int64 `[R]`, samples that share each bag.
        out: fp32, a row for each bag or for each sample; written.
        places: bags of each sample, or int64 `[R]`, of those that share them.
        apart: results of parts of rows that wait for those of other hosts, in order.
        fields: for compiled code.
    """

    __slots__ = (
        *("_spread", "apart", "fields", "lengths", "out", "places", "plan", "repeats"),
        *("samples", "values", "weights"),
    )

    def __init__(
        self,
        plan: LookupPlan,
        arrays: tuple[Tensor, Tensor, Tensor | None],
        repeats: NDArray[np.int64] | None,
        out: Tensor,
        samples: int,
        places: int | NDArray[np.int64] = 1,
    ) -> None:
        """`arrays` are values, lengths and weights of checked bags, as in `Bags`."""
        values, lengths, weights = arrays
        self.values = values = values.contiguous()
        self.lengths = lengths = lengths.contiguous()
        self.weights = weights = None if weights is None else weights.contiguous()
        self.plan, self.repeats, self.out = plan, repeats, out
        self.samples, self.places = samples, places
        features, count = lengths.shape
        self.apart: list[Tensor] = []
        apart = None
        if plan.apart:
            results, ends = torch.empty(count * sum(plan.apart)), accumulate(plan.apart)
            self.apart = [
                results[count * (end - width) : count * end].view(count, width)
                for end, width in zip(ends, plan.apart, strict=True)
            ]
            apart = results.data_ptr()
        self._spread, of_sample = repeats, places
        if not isinstance(places, int):
            self._spread, of_sample = np.repeat(repeats, places), 1  # type: ignore[arg-type]
        self.fields = abi.LookupGroup(
            plan.address,
            values.data_ptr(),
            lengths.data_ptr(),
            None if weights is None else weights.data_ptr(),
            features,
            count,
            None if self._spread is None else tensor_of(self._spread).data_ptr(),
            samples,
            of_sample,
            out.data_ptr(),
            out.shape[0],
            out.stride(0),
            apart,
        )

    @property
    def bags(self) -> Bags:
        """Its bags."""
        return Bags.trusted(self.values, self.lengths, self.weights)

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Int64 `[R]`, the first bag of each sample, or of those that share bags."""
        if isinstance(self.places, int):
            return np.arange(0, self.lengths.shape[1], self.places)
        firsts: NDArray[np.int64] = np.cumsum(self.places) - self.places
        return firsts


class Choice(NamedTuple):
    """What a part reads of a group: its bags, the bytes of their rows, and the rows saved."""

    bags: ChosenBags
    row_bytes: int
    saved: int


def look_up_groups(groups: Sequence[Group], deadline: float) -> tuple[list[StepWork], int]:
    """Runs the steps of this process, in one call; `deadline` is as `StartedRows.wait`.

    Returns each step's work, and the rows not looked up because samples share bags.

    Raises:
        LostMemoryError: a file of rows has lost bytes; do not use the outputs.
        RowReadError: rows cannot be read before the deadline; names the table.
        InternalError: repeats do not sum to the rows of an output.
    """
    count = len(groups)
    work = np.empty(sum([group.plan.step_count for group in groups]), _WORK)
    fields: ctypes.Structure | ctypes.Array[abi.LookupGroup] = groups[0].fields
    if count != 1:
        fields = (abi.LookupGroup * count)(*[group.fields for group in groups])
    run = abi.LookupRun(ctypes.addressof(fields), count, deadline, MOST_SECONDS, address_of(work))
    abi.lookup_run(run)
    if run.end != abi.LookupEnd.LOOKED_UP:
        raise _failure(run, groups[run.group])
    return work.tolist(), run.saved


def _failure(run: abi.LookupRun, group: Group) -> Exception:
    if run.end == abi.LookupEnd.WRONG_REPEATS:
        return _wrong_repeats(group, run.row)
    if run.end == abi.LookupEnd.ROWS_MISSING:
        step: Step = group.plan.steps[run.step]
        tier: RowTier = step.lookup.tables.tiers[run.entry].tier
        missing = MissingRow(run.why, run.error, run.entry, run.row, run.count)
        return tier.failure(missing, run.seconds)
    if run.end == abi.LookupEnd.NO_MEMORY:
        return MemoryError("no memory for a lookup")
    for file in group.plan.files:
        file.check()
    return InternalError("a file of rows is lost, and whole")


def choose(group: Group, parts: Parts) -> list[Choice]:
    """Bags of each part, with ids relative to their pieces."""
    bags, room = group.bags, len(group.bags.values) * parts.most_reads
    values = torch.empty(room, dtype=torch.int64)
    lengths = torch.empty(parts.entries, bags.lengths.shape[1], dtype=torch.int64)
    weights = None if bags.weights is None else torch.empty(room)
    chosen = np.empty(len(parts.parts), _CHOSEN)
    (abi.lookup_choose if room > _MANY else abi.lookup_choose_keeping_gil)(
        group.fields,
        *(parts.addresses, len(parts.parts), values.data_ptr(), lengths.data_ptr()),
        *(None if weights is None else weights.data_ptr(), address_of(chosen)),
    )
    own = Bags(values, lengths, weights)
    choices, copied = [], 0
    for part, (ids, row_bytes, saved, first_id) in zip(parts.parts, chosen.tolist(), strict=True):
        count, of, first = len(part.features), bags, part.features[0]
        if not part.is_adjacent:
            of, first, copied = own, copied, copied + count
        choices.append(Choice(ChosenBags(of, first, count, first_id, ids), row_bytes, saved))
    return choices


def merge(
    group: Group, results: Sequence[tuple[Part, Tensor]], lengths: Tensor | None = None
) -> None:
    """Copies or adds results to their columns, in the order of the plan, and divides means.

    Args:
        results: of parts, fp32 `[R, width]`, their last axis contiguous.
        lengths: int64 `[F, R]`, of the bags, where means are divided by others.

    Raises InternalError if repeats do not sum to the rows of the output.
    """
    ordered = sorted(((part.order, part, result) for part, result in results), key=itemgetter(0))
    described = (abi.LookupResult * len(ordered))(
        *(
            abi.LookupResult(ctypes.addressof(part.fields), result.data_ptr(), result.stride(0))
            for _, part, result in ordered
        )
    )
    fields = group.fields
    if lengths is not None:
        lengths = lengths.contiguous()
        fields.lengths = lengths.data_ptr()
    is_long = group.out.numel() > _MANY
    rows = (abi.lookup_merge if is_long else abi.lookup_merge_keeping_gil)(
        fields, described, len(ordered)
    )
    if rows != group.out.shape[0]:
        raise _wrong_repeats(group, rows)


def _wrong_repeats(group: Group, rows: int) -> InternalError:
    return InternalError(f"repeats: expected {len(group.out)} rows in all, got {rows}")
