"""The lookups of one batch: on all other hosts first, at once, and awaited last.

A host may be lost if all tables that the batch needs there declare default rows.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import InternalError, RequestError, ShardHostError
from sharded_infer.lookups.group_lookup import Group, GroupLookup, single_kernel_lookup
from sharded_infer.lookups.lookup_work import LookupWork, StepWork
from sharded_infer.lookups.rank_part import ChosenBags
from sharded_infer.lookups.raw_ids import UnknownIdError
from sharded_infer.lookups.shard_hosts import GroupAnswer, PieceBags, ShardHosts
from sharded_infer.lookups.steps import RemoteStep

# A step of a group on another host, and its bags.
_Asked = tuple[GroupLookup, RemoteStep, ChosenBags]


class BatchLookup:
    """Lookups of one batch: groups are added, and then `run` together."""

    def __init__(self, hosts: ShardHosts | None) -> None:
        self._hosts = hosts
        self._groups: list[GroupLookup] = []
        self._steps: list[StepWork] = []
        self._saved = 0

    def add(self, group: Group) -> None:
        """Adds a group; one kernel's is looked up at once."""
        saved = single_kernel_lookup(group, self._steps) if self._hosts is None else None
        if saved is None:
            self._groups.append(GroupLookup(group, self._steps))
        else:
            self._saved += saved

    def run(self, deadline: float, *, may_default: bool = False) -> LookupWork:
        """Looks up all groups.

        `deadline` bounds waits on hosts and on rows that are not in memory; `may_default` allows
        default rows for those of a lost host.

        Raises:
            RequestError: a host's id map refuses a raw id; names feature, sample, id and table.
            ShardedInferError: a host's error, or a rank's here; lookups on other hosts are
                cancelled.
        """
        groups = self._groups
        if self._hosts is None:
            look_up_here(groups, deadline)
        else:
            _look_up_with(self._hosts, groups, deadline, may_default=may_default)
        for group in groups:
            group.finish()
            self._saved += group.saved
        if self._hosts is None:
            return LookupWork(self._steps, self._saved)
        return LookupWork(self._steps, self._saved, _defaults_of(groups), _unknown_of(groups))


def look_up_here(lookups: Sequence[GroupLookup], deadline: float) -> None:
    """Runs the steps of this process; RowReadError if rows cannot be read before the deadline."""
    try:
        # All reads are started before the first is awaited.
        for lookup in lookups:
            lookup.start()
        for lookup in lookups:
            lookup.look_up(deadline)
    finally:
        for lookup in lookups:
            lookup.close()


def _look_up_with(
    hosts: ShardHosts, lookups: Sequence[GroupLookup], deadline: float, *, may_default: bool
) -> None:
    asked: dict[int, list[_Asked]] = {}
    for lookup in lookups:
        for step, chosen in lookup.ask():
            asked.setdefault(step.host, []).append((lookup, step, chosen))
    bags = {
        host: [
            PieceBags(step.pieces, chosen, step.stored, step.sum_bytes, step.raw)
            for _, step, chosen in places
        ]
        for host, places in asked.items()
    }
    may_lose: set[int] = set()
    if may_default:
        may_lose.update(host for host, places in asked.items() if _has_defaults(places))
    started = hosts.start(bags, deadline, may_lose) if bags else None
    try:
        look_up_here(lookups, deadline)
    except BaseException:
        if started is not None:
            started.cancel()
        raise
    if started is not None:
        try:
            answers = started.finish()
        except UnknownIdError as error:
            raise _named(error, asked) from error
        _take(asked, answers, may_lose)


def _named(error: UnknownIdError, asked: Mapping[int, Sequence[_Asked]]) -> RequestError:
    """The refusal of a raw id in the words of a front that maps it."""
    if error.host is None:
        raise InternalError("a raw id that no host has refused")
    where = error.where
    lookup, step, _ = asked[error.host][where.group]
    feature = lookup.route.features[int(step.part.positions[where.entry])]
    return RequestError(
        f"feature {feature.name!r}, sample {lookup.sample_of(where.bag)}: id {where.raw_id} is not "
        f"in the id map of table {feature.table.name!r}"
    )


def _has_defaults(places: Sequence[_Asked]) -> bool:
    return all(lookup.may_lose(step, chosen) for lookup, step, chosen in places)


def _take(
    asked: Mapping[int, Sequence[_Asked]],
    answers: Mapping[int, Sequence[GroupAnswer]],
    may_lose: Collection[int],
) -> None:
    for host, places in asked.items():
        if host in may_lose and host not in answers:
            for lookup, step, chosen in places:
                lookup.lose(step, chosen)
            continue
        of_host = answers.get(host, ())
        expected = [(chosen.bag_count, step.width) for _, step, chosen in places]
        came = [tuple(answer.pooled.shape) for answer in of_host]
        if came != expected:
            raise ShardHostError(
                f"shard host {host}: expected answers of shapes {expected}, got {came}"
            )
        for (lookup, step, _), answer in zip(places, of_host, strict=True):
            lookup.answer(step, answer.pooled, answer.unknown)


def _defaults_of(lookups: Sequence[GroupLookup]) -> Mapping[str, NDArray[np.bool_]]:
    """Bool `[B]` by table, ascending: samples that took its default row, for any feature."""
    taken: dict[str, NDArray[np.bool_]] = {}
    for lookup in lookups:
        for table, samples in lookup.defaults():
            taken[table] = samples | taken.get(table, samples)
    return dict(sorted(taken.items()))


def _unknown_of(lookups: Sequence[GroupLookup]) -> Mapping[str, NDArray[np.int64]]:
    """`LookupWork.unknown`, ascending."""
    counts: dict[str, NDArray[np.int64]] = {}
    for lookup in lookups:
        for table, samples in lookup.unknown():
            counts[table] = samples + counts[table] if table in counts else samples
    return dict(sorted(counts.items()))
