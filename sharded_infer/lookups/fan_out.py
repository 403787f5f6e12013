"""The lookups of one batch: other hosts are asked first, all at once, and awaited last.

A host may be lost if all tables that the batch needs there declare default rows.
"""

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from sharded_infer.errors import ShardHostError
from sharded_infer.lookups.native_parts import ChosenBags
from sharded_infer.lookups.route import GroupLookup, RemoteStep
from sharded_infer.lookups.shard_hosts import PieceBags, ShardHosts

# A step of a group that is asked elsewhere, and its bags.
_Asked = tuple[GroupLookup, RemoteStep, ChosenBags]


def look_up_groups(
    lookups: Sequence[GroupLookup],
    hosts: ShardHosts | None,
    deadline: float,
    *,
    may_default: bool = False,
) -> int:
    """Looks up all groups of a batch.

    Args:
        hosts: who is asked for the routes' remote steps.
        deadline: until which they are waited for.
        may_default: whether default rows may stand for what a lost host has.

    Returns:
        Rows not looked up because samples share a bag.

    Raises:
        ShardedInferError: a host's error. If a rank here fails, its error; what was asked of other
            hosts is cancelled.
    """
    if hosts is None:
        for lookup in lookups:
            lookup.look_up()
    else:
        _look_up_with(hosts, lookups, deadline, may_default=may_default)
    saved = 0
    for lookup in lookups:
        lookup.finish()
        saved += lookup.saved
    return saved


def _look_up_with(
    hosts: ShardHosts, lookups: Sequence[GroupLookup], deadline: float, *, may_default: bool
) -> None:
    asked: dict[int, list[_Asked]] = {}
    for lookup in lookups:
        for step, chosen in lookup.ask():
            asked.setdefault(step.host, []).append((lookup, step, chosen))
    bags = {
        host: [
            PieceBags(step.pieces, chosen, step.stored, step.sum_bytes)
            for _, step, chosen in places
        ]
        for host, places in asked.items()
    }
    may_lose: set[int] = set()
    if may_default:
        may_lose.update(host for host, places in asked.items() if _has_defaults(places))
    started = hosts.start(bags, deadline, may_lose) if bags else None
    try:
        for lookup in lookups:
            lookup.look_up()
    except BaseException:
        if started is not None:
            started.cancel()
        raise
    if started is not None:
        _take(asked, started.finish(), may_lose)


def _has_defaults(places: Sequence[_Asked]) -> bool:
    return all(lookup.may_lose(step, chosen) for lookup, step, chosen in places)


def _take(
    asked: Mapping[int, Sequence[_Asked]],
    answers: Mapping[int, Sequence[Tensor]],
    may_lose: Collection[int],
) -> None:
    for host, places in asked.items():
        if host in may_lose and host not in answers:
            for lookup, step, chosen in places:
                lookup.lose(step, chosen)
            continue
        found = answers.get(host, ())
        expected = [(chosen.bag_count, step.width) for _, step, chosen in places]
        came = [tuple(answer.shape) for answer in found]
        if came != expected:
            raise ShardHostError(
                f"shard host {host}: expected answers of shapes {expected}, got {came}"
            )
        for (lookup, step, _), answer in zip(places, found, strict=True):
            lookup.answer(step, answer)
