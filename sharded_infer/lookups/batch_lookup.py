"""The lookups of one batch: in one call, and on all other hosts first, at once, awaited last.

A host may be lost if all tables that the batch needs there declare default rows.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import InternalError, RequestError, ShardHostError
from sharded_infer.lookups.group_lookup import GroupLookup
from sharded_infer.lookups.lookup_group import Group, look_up_groups
from sharded_infer.lookups.lookup_work import LookupWork, StepWork
from sharded_infer.lookups.raw_ids import UnknownIdError
from sharded_infer.lookups.shard_hosts import ChosenBags, GroupAnswer, PieceBags, ShardHosts
from sharded_infer.lookups.steps import RemoteStep

# A step of a group on another host, and its bags.
_Asked = tuple[GroupLookup, RemoteStep, ChosenBags]


def look_up_batch(
    groups: Sequence[Group],
    deadline: float,
    hosts: ShardHosts | None = None,
    *,
    may_default: bool = False,
) -> LookupWork:
    """Looks up all groups of a batch.

    `deadline` bounds waits on hosts and on rows that are not in memory; `may_default` allows
    default rows for those of a lost host.

    Raises:
        RequestError: a host's id map refuses a raw id; names feature, sample, id and table.
        ShardedInferError: a host's error, or a rank's here; lookups on other hosts are cancelled.
    """
    for group in groups:
        if group.plan.is_merged:
            return _look_up_and_merge(groups, deadline, hosts, may_default=may_default)
    return LookupWork(*look_up_groups(groups, deadline))


def _look_up_and_merge(
    groups: Sequence[Group], deadline: float, hosts: ShardHosts | None, *, may_default: bool
) -> LookupWork:
    lookups = [GroupLookup(group) for group in groups]
    if hosts is None:
        work, saved = _look_up_here(lookups, deadline)
    else:
        work, saved = _look_up_with(hosts, lookups, deadline, may_default=may_default)
    for lookup in lookups:
        lookup.finish()
        work += lookup.work
        saved += lookup.saved
    return LookupWork(work, saved, _defaults_of(lookups), _unknown_of(lookups))


def _look_up_here(lookups: Sequence[GroupLookup], deadline: float) -> tuple[list[StepWork], int]:
    """Runs the steps of this process, as `look_up_groups`."""
    result = look_up_groups([lookup.group for lookup in lookups], deadline)
    for lookup in lookups:
        lookup.look_up()
    return result


def _look_up_with(
    hosts: ShardHosts, lookups: Sequence[GroupLookup], deadline: float, *, may_default: bool
) -> tuple[list[StepWork], int]:
    """`_look_up_here` while other hosts look up."""
    asked: dict[int, list[_Asked]] = {}
    for lookup in lookups:
        for step, chosen in lookup.ask():
            asked.setdefault(step.host, []).append((lookup, step, chosen))
    may_lose: set[int] = set()
    if may_default:
        may_lose.update(host for host, places in asked.items() if _has_defaults(places))
    started = hosts.start(_piece_bags(asked), deadline, may_lose) if asked else None
    try:
        here = _look_up_here(lookups, deadline)
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
    return here


def _piece_bags(asked: Mapping[int, Sequence[_Asked]]) -> dict[int, list[PieceBags]]:
    return {
        host: [
            PieceBags(step.pieces, chosen, step.stored, step.sum_bytes, step.raw)
            for _, step, chosen in places
        ]
        for host, places in asked.items()
    }


def _named(error: UnknownIdError, asked: Mapping[int, Sequence[_Asked]]) -> RequestError:
    """The refusal of a raw id in the words of a front that maps it."""
    if error.host is None:
        raise InternalError("a raw id that no host has refused")
    where = error.where
    lookup, step, _ = asked[error.host][where.group]
    feature = lookup.plan.features[step.part.features[where.entry]]
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
        expected = [(chosen.bag_count, step.part.width) for _, step, chosen in places]
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
