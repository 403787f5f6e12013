"""Rows tracked by TorchRec's `ModelDeltaTracker` during training.

TorchRec is not imported: its trackers are recognised by duck typing. Source:
`torchrec/distributed/model_tracker`, release 1.8.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from quant.sources.table_weight import bare_key
from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.changed_rows import ChangedRows, Changes, check_changes
from sharded_infer.importing.torchrec_names import table_of

# The lookup module inside a managed collision collection.
_MANAGED = "_embedding_module"


def changes_of_tracker(tracker: Any, consumer: str | None = None) -> Changes:
    """Current values of the rows looked up since the consumer's last read.

    With `TrackingMode.EMBEDDING` the tracker keeps each row as first looked up; unchanged rows are
    left out. Each rank has the rows of its own shards.

    Args:
        tracker: a `ModelDeltaTrackerTrec` of a `DistributedModelParallel`.
        consumer: as in its `get_unique`. Rows are returned once: `get_unique` and `step` are
            called.

    Raises:
        WeightsError: not a tracker, or a table is sharded by columns or has managed collisions.
    """
    if not (hasattr(tracker, "get_unique") and hasattr(tracker, "get_tracked_modules")):
        raise WeightsError(f"expected TorchRec's ModelDeltaTracker, got a {type(tracker).__name__}")
    weights = dict(_weights(tracker))
    changes: dict[str, ChangedRows] = {}
    for name, unique in _unique(tracker, consumer).items():
        if not len(unique.ids):
            continue
        table = table_of(bare_key(name))
        if table in changes or name not in weights:
            raise WeightsError(
                f"table {table!r}: expected one table of this name with rows in this process, got "
                f"{name!r} {'as a second one' if table in changes else 'without rows'}"
            )
        changes[table] = _changed(table, weights[name], unique.ids, unique.states)
    return check_changes(
        {table: changed for table, changed in changes.items() if len(changed.ids)}, "the tracker"
    )


def _unique(tracker: Any, consumer: str | None) -> Mapping[str, Any]:
    consumer = consumer or str(tracker.DEFAULT_CONSUMER)
    if consumer not in tracker.per_consumer_batch_idx:
        known = list(tracker.per_consumer_batch_idx)
        raise WeightsError(f"the tracker has no consumer {consumer!r}, only {known!s:.200}")
    # TorchRec's get_unique fails for a table without lookups.
    lookups = tracker.store.per_fqn_lookups
    for name in [name for name, found in lookups.items() if not found]:
        del lookups[name]
    try:
        unique: Mapping[str, Any] = tracker.get_unique(consumer)
    except ValueError as error:
        raise WeightsError(
            f"the tracker: expected lookups in all tables since {consumer!r} last read it: {error}"
        ) from error
    # Lookups before the next step would otherwise belong to no read.
    tracker.step()
    return unique


def _weights(tracker: Any) -> Iterator[tuple[str, tuple[int, Tensor]]]:
    for module_name, module in tracker.get_tracked_modules().items():
        managed = _MANAGED in module_name.split(".")
        prefix = f"{module_name}." if module_name else ""
        # A state dict writes device caches back first.
        for key, weight in module.state_dict(prefix=prefix).items():
            if not key.endswith(".weight") or not isinstance(weight, Tensor):
                continue
            name = key.removesuffix(".weight")
            if managed:
                raise WeightsError(
                    f"table {table_of(name)!r}: the tracker has rows that managed collisions chose,"
                    " not raw ids; publish it whole, with id_maps_of"
                )
            shard = _shard(table_of(name), weight)
            if shard is not None:
                yield name, shard


def _shard(table: str, weight: Any) -> tuple[int, Tensor] | None:
    # Sharded tensors and DTensors, recognised by duck typing.
    local = weight.to_local() if hasattr(weight, "to_local") else weight
    if not hasattr(local, "local_shards"):
        return 0, local.detach()
    shards = local.local_shards()
    tensors = [getattr(shard, "tensor", shard) for shard in shards]
    starts = (
        local.local_offsets()
        if hasattr(local, "local_offsets")
        else [shard.metadata.shard_offsets for shard in shards]
    )
    if not tensors:
        return None
    if len(tensors) > 1 or tensors[0].shape[1] != weight.shape[1]:
        raise WeightsError(
            f"table {table!r}: is cut by columns or twice in this process, so that a lookup does "
            f"not name whole rows; expected one shard of {weight.shape[1]} columns, got "
            f"{' and '.join(str(list(tensor.shape)) for tensor in tensors)}"
        )
    return int(starts[0][0]), tensors[0].detach()


def _changed(
    table: str, shard: tuple[int, Tensor], ids: Tensor, states: Tensor | None
) -> ChangedRows:
    first, weight = shard
    own = ids.to(weight.device, torch.int64)
    if len(own) and not 0 <= int(own.min()) <= int(own.max()) < len(weight):
        raise WeightsError(
            f"table {table!r}: the tracker has ids {int(own.min())} to "
            f"{int(own.max())}, expected rows of {len(weight)}"
        )
    values = weight[own].to("cpu", torch.float32)
    rows = own.cpu().numpy() + first
    if states is None or states.shape != values.shape:
        return ChangedRows(rows, values)
    before = states.detach().to("cpu", torch.float32)
    differs = (before.view(torch.int32) != values.view(torch.int32)).any(dim=1)
    return ChangedRows(rows, values).taken(differs.numpy())
