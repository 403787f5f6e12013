"""Id maps of TorchRec's managed collision modules: from memory, state dicts and checkpoints.

TorchRec is not imported: its modules are recognised by their attributes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from quant.sources.arranged_rows import JoinedRows
from quant.sources.checkpoint import open_weights, weights_of
from quant.sources.distributed_checkpoint import DistributedCheckpointSource
from quant.sources.table_weight import bare_key
from quant.sources.weight_source import SourceError, TensorSource, WeightSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.importing.id_maps.mch import (
    MCH_COUNTS,
    MCH_IDS,
    MCH_ROWS,
    MCH_SEGMENTS,
    mch_source,
)
from sharded_infer.importing.id_maps.mpzch import (
    MPZCH_BUCKETS,
    MPZCH_COUNTS,
    MPZCH_IDS,
    MpzchSettings,
    mpzch_source,
)
from sharded_infer.importing.id_maps.stored_ids import check_column, read_column

Weights = Path | str | Mapping[str, object] | nn.Module | WeightSource
# Where a hash function is applied to ids before the map.
InputHash = Literal["none", "caller"]
_COLLECTION = "_managed_collision_modules"


def id_maps_of(*ranks: nn.Module, input_hash: InputHash = "none") -> dict[str, IdMapSource]:
    """The id maps of modules in memory, by table.

    Args:
        ranks: a module with managed collisions, such as TorchRec's
            `ManagedCollisionEmbeddingBagCollection` or its quantized form; if sharded by rows, that
            of each training rank in order.
        input_hash: "caller" if clients send ids already hashed by an `input_hash_func`.

    Raises:
        WeightsError: there is no such module, the ranks do not match, or a module's arrays do not
            describe it; names the table.
    """
    if input_hash not in ("none", "caller"):
        raise WeightsError(f"expected input_hash 'none' or 'caller', got {input_hash!r}")
    found = [_modules(rank) for rank in ranks]
    if not found or not found[0]:
        kinds = ", ".join(type(rank).__name__ for rank in ranks)
        raise WeightsError(
            f"expected a module with managed collisions (MCH or MPZCH), got {kinds or 'none'}"
        )
    for rank, modules in enumerate(found):
        if modules.keys() != found[0].keys():
            raise WeightsError(
                f"rank {rank}: maps ids of {', '.join(modules) or 'no table'}, expected those of "
                f"{', '.join(found[0])} as rank 0"
            )
    sources = {}
    for table in found[0]:
        of_ranks = [rank[table] for rank in found]
        if hasattr(of_ranks[0], MCH_IDS):
            sources[table] = _live_mch(table, of_ranks, input_hash)
        else:
            sources[table] = _live_mpzch(table, of_ranks)
    return sources


def mch_id_map(
    weights: Weights,
    table: str,
    *,
    input_hash: InputHash,
    input_hash_size: int = 2**63 - 1,
    segments: Sequence[int] | None = None,
) -> IdMapSource:
    """The id map of an MCH table in a state dict or a checkpoint.

    Args:
        weights: a checkpoint's path, a state dict, or weights as `publish` takes them.
        input_hash: "none" if the module has no `input_hash_func`, "caller" if clients apply it. No
            checkpoint holds that function.
        input_hash_size: of the module; it matters if there were several training ranks.
        segments: the first row of each training rank; None reads them from the checkpoint.

    Raises:
        WeightsError: there is no such map, or it is inconsistent.
    """
    if input_hash not in ("none", "caller"):
        raise WeightsError(
            f"table {table!r}: expected input_hash 'none' or 'caller' (input_hash_func is Python "
            f"code, which no checkpoint holds), got {input_hash!r}"
        )
    source = _source(weights)
    ids = _key(source, table, MCH_IDS)
    rows = ids.removesuffix(MCH_IDS) + MCH_ROWS
    starts = _segments(source, ids) if segments is None else segments
    counts = ids.removesuffix(MCH_IDS) + MCH_COUNTS
    known = counts if counts in set(source.keys()) else None
    return mch_source(source, ids, rows, starts, input_hash_size, known)


def mpzch_id_map(
    weights: Weights, table: str, settings: MpzchSettings, *, buckets: int | None = None
) -> IdMapSource:
    """The id map of an MPZCH table in a state dict or a checkpoint.

    Args:
        weights: as in `mch_id_map`.
        settings: of the module; refused if they leave an id unreachable.
        buckets: `total_num_buckets`; None reads it from the checkpoint.

    Raises:
        WeightsError: there is no such map, or it is inconsistent with itself or the settings.
    """
    source = _source(weights)
    ids = _key(source, table, MPZCH_IDS)
    said = ids.removesuffix(MPZCH_IDS) + MPZCH_BUCKETS
    if buckets is None:
        if said not in set(source.keys()):
            raise WeightsError(
                f"table {table!r}: {source.description} does not say its number of buckets "
                f"({said!r}); give total_num_buckets"
            )
        buckets = int(read_column(source, said, 0, 1)[0])
    return mpzch_source(source, ids, buckets, settings)


def _source(weights: Any) -> WeightSource:
    try:
        if isinstance(weights, str | Path):
            return open_weights(Path(weights))
        return weights_of(weights)
    except SourceError as error:
        raise WeightsError(str(error)) from error


def _key(source: WeightSource, table: str, name: str) -> str:
    ending = f"{_COLLECTION}.{table}.{name}"
    keys = {key: f".{bare_key(key)}" for key in list(source.keys())}
    found = [key for key, bare in keys.items() if bare.endswith(f".{ending}")]
    # The state dict of the table's module alone.
    if not found and not any(_COLLECTION in key for key in keys):
        found = [key for key, bare in keys.items() if bare.endswith(f".{name}")]
    if len(found) != 1:
        shown = " and ".join(map(repr, sorted(found)[:3])) or "nothing"
        raise WeightsError(
            f"table {table!r}: {source.description} holds {shown} for {ending!r}, expected one"
        )
    return found[0]


def _segments(source: WeightSource, ids: str) -> list[int]:
    if isinstance(source, DistributedCheckpointSource):
        return source.starts(ids)
    key = ids.removesuffix(MCH_IDS) + MCH_SEGMENTS
    if key not in set(source.keys()):
        return [0]
    # First rows of the ranks and the end of the last, then -1.
    said = read_column(source, key, 0, check_column(source, key))
    return [int(start) for start in said[said >= 0][:-1]] or [0]


def _modules(module: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, part in module.named_modules():
        if hasattr(part, MCH_IDS) or hasattr(part, MPZCH_IDS):
            table = path.rpartition(".")[2] or str(getattr(part, "_name", None) or "table")
            if table in found:
                raise WeightsError(f"table {table!r}: two modules map its ids")
            found[table] = part
    return found


def _live_mch(table: str, modules: Sequence[Any], input_hash: InputHash) -> IdMapSource:
    starts, size = [], modules[0]._input_hash_size
    for rank, module in enumerate(modules):
        function = getattr(module, "_input_hash_func", None)
        if function is not None and input_hash != "caller":
            raise WeightsError(
                f"table {table!r}: its module changes ids by input_hash_func "
                f"({getattr(function, '__name__', function)!s:.100}), which is Python code; send "
                "ids that it has changed, and say input_hash='caller'"
            )
        if not hasattr(module, MCH_ROWS) or module._input_hash_size != size:
            raise WeightsError(f"table {table!r}: rank {rank} differs from rank 0 in its settings")
        starts.append(int(module._output_global_offset))
    counts = MCH_COUNTS if all(hasattr(module, MCH_COUNTS) for module in modules) else None
    names = (MCH_IDS, MCH_ROWS) if counts is None else (MCH_IDS, MCH_ROWS, counts)
    parts = _joined(table, modules, names)
    if starts != parts.starts(MCH_IDS):
        raise WeightsError(
            f"table {table!r}: expected the modules of all ranks in order, from rows "
            f"{parts.starts(MCH_IDS)}, got {starts}"
        )
    return mch_source(parts, MCH_IDS, MCH_ROWS, starts, size, counts)


def _live_mpzch(table: str, modules: Sequence[Any]) -> IdMapSource:
    first, settings = modules[0], [_settings(module) for module in modules]
    counts = (MPZCH_COUNTS,) if all(one.track_id_freq for one in settings) else ()
    parts = _joined(table, modules, (MPZCH_IDS, *counts))
    rows, buckets = parts.shape(MPZCH_IDS)[0], first._buckets
    equal = [bucket * (rows // buckets) for bucket in range(buckets)] + [rows]
    covered = [(module._start_bucket, module._end_bucket) for module in modules]
    ends = [0, *(end for _, end in covered)]
    if [start for start, _ in covered] != ends[:-1] or ends[-1] != buckets:
        raise WeightsError(
            f"table {table!r}: expected the modules of all ranks in order, with all {buckets} "
            f"buckets, got buckets {covered}"
        )
    if list(first._output_segments) != equal:
        raise WeightsError(
            f"table {table!r}: expected {buckets} equal buckets, got output_segments "
            f"{first._output_segments!s:.200}"
        )
    if any(one != settings[0] for one in settings):
        raise WeightsError(f"table {table!r}: its ranks differ in their settings: {settings}")
    return mpzch_source(parts, MPZCH_IDS, buckets, settings[0])


def _settings(module: Any) -> MpzchSettings:
    reserved = module.get_reserved_slots_per_bucket()
    return MpzchSettings(
        disable_fallback=module._disable_fallback,
        input_hash_size=module._input_hash_size,
        max_probe=module._max_probe,
        divided=module.input_mapper._inference_dispatch_div_train_world_size,
        reserved_slots=None if reserved == -1 else reserved,
        track_id_freq=getattr(module, "_track_id_freq", False),
    )


def _joined(table: str, modules: Sequence[Any], names: Sequence[str]) -> JoinedRows:
    description = f"the id map of table {table!r}"
    parts: dict[str, list[tuple[WeightSource, str]]] = {name: [] for name in names}
    for rank, module in enumerate(modules):
        tensors = {name: getattr(module, name) for name in names}
        source = TensorSource(tensors, f"{description}, rank {rank}")
        for name in names:
            parts[name].append((source, name))
    try:
        return JoinedRows(parts, description)
    except SourceError as error:
        raise WeightsError(str(error)) from error
