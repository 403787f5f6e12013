"""The lookups of one batch: other hosts are asked first, all at once, and awaited last."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from sharded_infer.errors import ShardHostError
from sharded_infer.lookups.route import GroupLookup, RemoteStep
from sharded_infer.lookups.shard_hosts import PieceBags, ShardHosts

# A step of a group that is asked elsewhere, and the number of its bags for each entry.
_Asked = tuple[GroupLookup, RemoteStep, int]


def look_up_groups(
    lookups: Sequence[GroupLookup], hosts: ShardHosts | None, deadline: float
) -> int:
    """Looks up all groups of a batch.

    Args:
        hosts: who is asked for the routes' remote steps.
        deadline: until which they are waited for.

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
        _look_up_with(hosts, lookups, deadline)
    saved = 0
    for lookup in lookups:
        lookup.finish()
        saved += lookup.saved
    return saved


def _look_up_with(hosts: ShardHosts, lookups: Sequence[GroupLookup], deadline: float) -> None:
    asked: dict[int, list[_Asked]] = {}
    bags: dict[int, list[PieceBags]] = {}
    for lookup in lookups:
        for step, chosen in lookup.ask():
            asked.setdefault(step.host, []).append((lookup, step, chosen.lengths.shape[1]))
            bags.setdefault(step.host, []).append(PieceBags(step.pieces, chosen))
    started = hosts.start(bags, deadline) if bags else None
    try:
        for lookup in lookups:
            lookup.look_up()
    except BaseException:
        if started is not None:
            started.cancel()
        raise
    if started is not None:
        _take(asked, started.finish())


def _take(asked: Mapping[int, Sequence[_Asked]], answers: Mapping[int, Sequence[Tensor]]) -> None:
    for host, places in asked.items():
        found = answers.get(host, ())
        expected = [(rows, step.width) for _, step, rows in places]
        came = [tuple(answer.shape) for answer in found]
        if came != expected:
            raise ShardHostError(
                f"shard host {host}: expected answers of shapes {expected}, got {came}"
            )
        for (lookup, step, _), answer in zip(places, found, strict=True):
            lookup.answer(step, answer)
