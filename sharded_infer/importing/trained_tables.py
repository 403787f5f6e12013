"""Table settings read from live modules, in addition to the spec."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import nn

from kernels.row_format import RowFormat
from quant.sources.checkpoint import LiveSource
from quant.sources.table_weight import find_key
from quant.sources.weight_source import SourceError, WeightSource, said_format
from sharded_infer.errors import SpecError
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.specs.spec_file import dump_spec, parse_spec

# TorchRec's collections that weight or rename ids before their lookup.
PROCESSORS = ("feature_processor", "_feature_processors", "_managed_collision_collection")
# The names of torchrec.modules.embedding_configs.DataType. Its NFP8 rows are not our fp8.
STORED_FORMATS = {
    "FP32": RowFormat.FP32,
    "FP16": RowFormat.FP16,
    "BF16": RowFormat.BF16,
    "INT8": RowFormat.INT8,
    "UINT8": RowFormat.INT8,
    "INT4": RowFormat.INT4,
    "INT2": RowFormat.INT2,
}
_HAS_ID_MAPS = "; give its state dict, and id_maps=id_maps_of(it)"
# Methods that return the configs of a pooling and of an unpooled collection.
_CONFIGS = {True: "embedding_bag_configs", False: "embedding_configs"}
# The attribute that holds the lookup collection inside a processing one.
_WRAPPED = "_embedding_module."
_QUANTIZED = (RowFormat.INT8, RowFormat.INT4, RowFormat.INT2)


@dataclass(frozen=True, slots=True)
class TrainedTable:
    """A module's settings of one table; None for unknown ones.

    Attributes:
        pooling: `sum` or `mean`.
        stored: the row format of quantized rows.
        tells_padding: True if such modules can have a padding id, left out of their bags.
        refusal: why a spec cannot describe the module; empty if one can.
        pools: False if the module looks up single rows; None: either.
        weighted: False if the module ignores or refuses weights of ids, or does not pool: then a
            spec may say otherwise; None: either.
    """

    said_by: str
    pooling: str | None = None
    features: tuple[str, ...] | None = None
    stored: RowFormat | None = None
    tells_padding: bool = False
    padding_idx: int | None = None
    refusal: str = ""
    pools: bool | None = None
    weighted: bool | None = None


@dataclass(frozen=True, slots=True)
class TorchRecCollection:
    """A TorchRec `EmbeddingBagCollection` or `EmbeddingCollection`, recognised by its parts.

    `prefix` is that of its keys in the weights; `processors` change features before their lookup.
    Unless it `pools`, it returns a row for each id.
    """

    prefix: str
    module: Any
    configs: Sequence[Any]
    pools: bool
    processors: tuple[str, ...] = ()

    def key(self, table: str) -> str:
        """The key of a table's weight."""
        folder = "embedding_bags" if self.pools else "embeddings"
        return f"{self.prefix}{folder}.{table}.weight"

    @property
    def is_callable(self) -> bool:
        """True if it can be called here.

        A collection sharded by TorchRec cannot, nor one of weighted means, which nn.EmbeddingBag
        refuses to compute.
        """
        if (
            self.pools
            and self.is_weighted
            and any(config.pooling.value == "MEAN" for config in self.configs)
        ):
            return False
        return callable(getattr(self.module, _CONFIGS[self.pools], None))

    @property
    def is_weighted(self) -> bool | None:
        """True if it multiplies rows by weights; None if it does not say so."""
        said = getattr(self.module, "is_weighted", getattr(self.module, "_is_weighted", None))
        return said() if callable(said) else said


def torchrec_collections(source: LiveSource) -> list[TorchRecCollection]:
    """The collections among the modules, outer ones first."""
    found = []
    processors: dict[str, tuple[str, ...]] = {}
    for prefix, module in source.submodules():
        of_owner = processors.get(prefix.removesuffix(_WRAPPED), ())
        own = tuple(p.lstrip("_") for p in PROCESSORS if hasattr(module, p))
        processors[prefix] = own
        for pools, name in _CONFIGS.items():
            if configs := _configs(module, name):
                found.append(TorchRecCollection(prefix, module, configs, pools, own or of_owner))
    return found


def resolve_spec(spec: ModelSpec, source: WeightSource) -> ModelSpec:
    """Complete a spec with the modules' settings, so that every table has its pooling.

    Files and tensors declare none. Raises SpecError, naming the table and both values, if spec and
    module disagree or a spec cannot describe the module.
    """
    trained = trained_tables(source) if isinstance(source, LiveSource) else {}
    fields = dump_spec(spec)
    for table, own in zip(spec.tables, fields["tables"], strict=True):
        key = None
        # A missing weight is refused where it is read.
        with suppress(SourceError):
            key = find_key(source, table.name, table.weights)
        said = trained.get(key) if key is not None else None
        if key is not None and spec.fixed_format(table) is None:
            stored = said_format(source, key)
            own |= {"format": str(stored)} if stored is not None else {}
        if said is not None:
            own |= _from_module(spec, table, said)
        own.setdefault("pooling", "sum")
    resolved = parse_spec(fields, f"{spec.name!r} with what its modules say")
    if isinstance(source, LiveSource):
        _check_order(resolved, source)
    return resolved


def _check_order(spec: ModelSpec, source: LiveSource) -> None:
    """Refuse an order of features other than the collection's, which the tower was trained on."""
    order = [(feature.name, feature.table.name) for feature in spec.features]
    for collection in torchrec_collections(source):
        if not collection.pools:
            continue
        theirs = [(f, config.name) for config in collection.configs for f in config.feature_names]
        if set(theirs) >= set(order) and [pair for pair in theirs if pair in set(order)] != order:
            raise SpecError(
                f"features: the spec has them in the order {[name for name, _ in order]}, its "
                f"{type(collection.module).__name__} in the order {[name for name, _ in theirs]}; "
                "the tower takes their embeddings in the spec's order: give the tables in the "
                "collection's. A tower of its own order takes dict(collection.embedding_bags)"
                + ("" if collection.is_weighted else ", and weighted = false for its tables")
            )


def trained_tables(source: LiveSource) -> dict[str, TrainedTable]:
    """Table settings of modules, by the weight's key."""
    found: dict[str, TrainedTable] = {}
    for key, module in source.embeddings().items():
        if isinstance(module, nn.Embedding):
            found[key] = TrainedTable("its nn.Embedding", pools=False, weighted=False)
        elif isinstance(module, nn.EmbeddingBag):
            found[key] = TrainedTable(
                "its nn.EmbeddingBag",
                module.mode,
                tells_padding=True,
                padding_idx=module.padding_idx,
                refusal=_unknown_pooling(module.mode),
                weighted=False if module.mode == "mean" else None,
            )
    for collection in torchrec_collections(source):
        name = type(collection.module).__name__
        for config in collection.configs:
            pooling = config.pooling.value.lower() if collection.pools else None
            stored = STORED_FORMATS.get(config.data_type.value)
            refusal = "" if pooling is None else _unknown_pooling(pooling)
            if collection.processors:
                first = collection.processors[0]
                refusal = (
                    f"its {name} changes features before their lookup ({first}), which a "
                    "spec cannot describe"
                    + (_HAS_ID_MAPS if first == "managed_collision_collection" else "")
                )
            found[collection.key(config.name)] = TrainedTable(
                f"its {type(config).__name__} in the {name}",
                pooling,
                tuple(config.feature_names),
                stored if stored in _QUANTIZED else None,
                refusal=refusal,
                pools=collection.pools,
                weighted=collection.is_weighted if collection.pools else False,
            )
    return found


def _unknown_pooling(mode: str) -> str:
    if mode in ("sum", "mean"):
        return ""
    return f"its module pools by {mode!r}, which is not supported: expected 'sum' or 'mean'"


def _configs(module: nn.Module, name: str) -> Sequence[Any]:
    given = getattr(module, name, None)
    # A collection that TorchRec has sharded keeps them private.
    configs = given() if callable(given) else getattr(module, f"_{name}", ())
    return [config for config in configs if hasattr(config, "feature_names")]


def _from_module(spec: ModelSpec, table: TableSpec, said: TrainedTable) -> dict[str, object]:
    if said.refusal:
        raise SpecError(f"table {table.name!r}: {said.refusal}")
    if table.pooling is not None and said.pooling not in (None, table.pooling):
        raise SpecError(
            f"table {table.name!r}: the spec says pooling {table.pooling!r}, {said.said_by} pools "
            f"by {said.pooling!r}; leave it out of the spec to take the module's"
        )
    if table.features and said.features and set(table.features) != set(said.features):
        raise SpecError(
            f"table {table.name!r}: the spec says features {list(table.features)}, "
            f"{said.said_by} has feature_names {list(said.features)}; leave them out of the spec "
            "to take the module's"
        )
    if said.tells_padding and table.padding_idx not in (None, said.padding_idx):
        theirs = "none" if said.padding_idx is None else said.padding_idx
        raise SpecError(
            f"table {table.name!r}: the spec says padding_idx {table.padding_idx}, "
            f"{said.said_by} has {theirs}; leave it out of the spec to take the module's"
        )
    _check_pooled(spec, table, said)
    _check_weighted(table, said)
    fields: dict[str, object] = {}
    if said.weighted is False and table.weighted is None:
        fields["weighted"] = False
    if said.padding_idx is not None:
        fields["padding_idx"] = said.padding_idx
    if said.pooling is not None:
        fields["pooling"] = said.pooling
    if said.features and not table.features:
        fields["features"] = list(said.features)
    if said.stored is not None and spec.fixed_format(table) is None:
        fields["format"] = str(said.stored)
    return fields


def _check_weighted(table: TableSpec, said: TrainedTable) -> None:
    if said.weighted is False and said.pools is not False and table.weighted:
        raise SpecError(
            f"table {table.name!r}: the spec says weighted = true, {said.said_by} has no weights "
            "of ids; leave it out of the spec to take the module's"
        )
    is_trained_mean = said.pooling == "mean" and said.stored is None
    if said.weighted and is_trained_mean and table.weighted is None:
        raise SpecError(
            f"table {table.name!r}: {said.said_by} pools a weighted mean, which TorchRec divides "
            "by the sum of weights while it trains, and by the number of ids once it is "
            "quantized; a server divides by the number of ids: give the table weighted = true to "
            "accept that, or weighted = false to refuse weights"
        )


def _check_pooled(spec: ModelSpec, table: TableSpec, said: TrainedTable) -> None:
    if said.pools is None or not said.features:
        return
    unpooled = {name for one in spec.sequences.values() for name in one.features}
    for name in table.features or said.features:
        if said.pools and name in unpooled:
            raise SpecError(
                f"table {table.name!r}: the spec has feature {name!r} in a sequence, "
                f"{said.said_by} pools it"
            )
        if not said.pools and name not in unpooled and table.pooling is None:
            raise SpecError(
                f"table {table.name!r}: {said.said_by} does not pool feature {name!r}, and the "
                "spec has it in no sequence; put it into [sequences], or give the table a pooling, "
                "where each of its bags has one id"
            )


def weight_keys(spec: ModelSpec, source: WeightSource) -> Mapping[str, str]:
    """Each table's key in the weights, by name; SourceError if a weight is missing."""
    return {table.name: find_key(source, table.name, table.weights) for table in spec.tables}
