"""The trained model: live modules, called as torch and TorchRec call them."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quant.sources.checkpoint import LiveSource
from quant.sources.table_weight import FLOATING
from quant.sources.weight_source import SourceError
from sharded_infer.errors import SpecError, WeightsError
from sharded_infer.importing.trained_tables import (
    TorchRecCollection,
    torchrec_collections,
    weight_keys,
)
from sharded_infer.inputs.id_policy import IdPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.sequences.layout import SequenceLayout
from sharded_infer.quality.fp32_model import checked_bags, with_bags
from sharded_infer.specs.model_spec import FeatureSpec, ModelSpec
from sharded_infer.tensors import tensor_of

# Scores a batch: dense inputs by name, and all features as a KeyedJaggedTensor.
WholeModel = Callable[[Mapping[str, Tensor], Any], Mapping[str, Tensor]]
# Ids `[N]`, lengths `[B]` and weights `[N]` or None of one feature.
_Part = tuple[Tensor, Tensor, Tensor | None]
_ROWS = 65_536  # of a table, looked at together


class TrainedModel:
    """The modules that hold a model's embeddings, and optionally the whole model."""

    def __init__(self, spec: ModelSpec, source: LiveSource) -> None:
        """Find each feature's module; WeightsError for a missing weight or a `max_norm`."""
        try:
            keys = weight_keys(spec, source)
        except SourceError as error:
            raise WeightsError(str(error)) from error
        self._layout = SequenceLayout(spec)
        self._features = spec.table_features
        self._spec = spec
        self._whole: WholeModel | None = source.whole
        modules = source.embeddings()
        self._collections: list[tuple[TorchRecCollection, dict[int, str]]] = []
        self._modules: dict[int, nn.Module] = {}
        taken: set[int] = set()
        for collection in torchrec_collections(source):
            tables = {collection.key(config.name): config for config in collection.configs}
            places = {
                place: tables[keys[feature.table.name]].name
                for place, feature in enumerate(self._features)
                if keys[feature.table.name] in tables and place not in taken
            }
            if places and collection.is_callable:
                self._collections.append((collection, places))
                taken |= set(places)
        for place, feature in enumerate(self._features):
            module = modules.get(keys[feature.table.name])
            if module is not None:
                _check_norms(feature, module)
                if place not in taken and not _is_weighted_mean(feature, module):
                    self._modules[place] = module
        # An nn.EmbeddingBag leaves its padding out by itself.
        padded = {p for p, m in self._modules.items() if isinstance(m, nn.EmbeddingBag)}
        self._policy = IdPolicy(
            [
                replace(f, table=replace(f.table, padding_idx=None)) if place in padded else f
                for place, f in enumerate(spec.input_features)
            ]
        )

    @property
    def features(self) -> int:
        """The number of features with callable modules."""
        return len(self._modules) + sum(len(places) for _, places in self._collections)

    def embeddings(self, model_input: ModelInput) -> dict[int, Tensor]:
        """Pooled embeddings and sequence rows, by the feature's place in `table_features`.

        Only of features with callable modules: `[B, dim]` on the host in the module's dtype; `[B, L
        * dim]` for a sequence, padded to L. `model_input` is one jagged batch of all features. Ids
        outside their tables are treated as in the spec; a module that knows its padding handles it.

        Raises:
            SpecError: the samples have weights, and a module ignores or refuses them.
            WeightsError: a module fails; names the table and the module's error.
            InputError, RequestError: as `Fp32Model.pooled`.
        """
        found: dict[int, Tensor] = {}
        parts = self._parts(model_input)
        for collection, places in self._collections:
            found |= self._from_collection(collection, places, parts)
        for place, module in self._modules.items():
            feature = self._features[place]
            with _named(f"table {feature.table.name!r}: its {type(module).__name__}"):
                found[place] = _from_module(feature, module, *parts[place]).detach().cpu()
        # Each position of a sequence is a bag.
        return {place: rows.reshape(model_input.batch_size, -1) for place, rows in found.items()}

    def scores(self, model_input: ModelInput) -> dict[str, NDArray[np.float32]] | None:
        """The whole model's scores, fp32 `[B]` or `[B, K]`; None for embeddings only.

        Errors as `embeddings`.
        """
        if self._whole is None or not self._collections:
            return None
        collection, places = self._collections[0]
        dense = dict(zip(self._spec.dense.inputs, map(tensor_of, model_input.dense), strict=True))
        with _named("the trained model"):
            jagged = self._jagged(collection, places, self._parts(model_input))
            scores = self._whole(dense, jagged)
        return {name: tensor.float().cpu().numpy() for name, tensor in scores.items()}

    def _parts(self, model_input: ModelInput) -> list[_Part]:
        """Bags of each feature; a sequence's bags are its padded positions, of at most one id."""
        bags = checked_bags(self._policy, model_input)
        counts = bags.lengths.sum(1).tolist()
        values = torch.split(bags.values, counts)
        scales = [None] * len(counts) if bags.weights is None else torch.split(bags.weights, counts)
        parts = list(zip(values, bags.lengths, scales, strict=True))[: len(self._spec.features)]
        for sequence in self._layout.lay_out(with_bags(model_input, bags)):
            lengths = tensor_of(sequence.bags.lengths)
            values = torch.split(tensor_of(sequence.bags.values), lengths.sum(1).tolist())
            parts += [
                (ids, of_places, None) for ids, of_places in zip(values, lengths, strict=True)
            ]
        return parts

    def _from_collection(
        self,
        collection: TorchRecCollection,
        places: Mapping[int, str],
        parts: list[_Part],
    ) -> dict[int, Tensor]:
        given = parts
        if not collection.pools:
            # Unpooled rows do not depend on their owner.
            given = [(ids, torch.tensor([len(ids)]), scales) for ids, _, scales in parts]
        with _named(f"its {type(collection.module).__name__}"):
            returned = collection.module(self._jagged(collection, places, given))
            by_name = returned.to_dict() if collection.pools else returned
        found = {}
        for place, table in places.items():
            name = self._features[place].name
            # TorchRec qualifies the features of several tables.
            named = name if name in by_name else f"{name}@{table}"
            if named not in by_name:
                raise SpecError(
                    f"feature {name!r}: its {type(collection.module).__name__} has no such "
                    f"feature, only {', '.join(by_name)}"
                )
            if collection.pools:
                found[place] = by_name[named].detach().cpu()
            else:
                rows = by_name[named].values().detach().cpu()
                found[place] = _pooled(self._features[place], rows, *parts[place][1:])
        return found

    def _jagged(
        self,
        collection: TorchRecCollection,
        places: Mapping[int, str],
        parts: list[_Part],
    ) -> Any:
        weighted = collection.pools and collection.module.is_weighted()
        given = {self._features[place].name: place for place in places}
        samples = len(parts[next(iter(places))][1])
        nothing = torch.empty(0, dtype=torch.int64), torch.zeros(samples, dtype=torch.int64), None
        names = dict.fromkeys(name for c in collection.configs for name in c.feature_names)
        chosen = [parts[given[name]] if name in given else nothing for name in names]
        for name, (_, _, scales) in zip(names, chosen, strict=True):
            if not weighted and scales is not None and bool((scales != 1).any()):
                raise SpecError(
                    f"feature {name!r}: the samples have weights, its "
                    f"{type(collection.module).__name__} is not weighted (is_weighted is False) "
                    "and ignores them"
                )
        device = _device(collection.module)
        all_scales = [torch.ones(len(v)) if s is None else s for v, _, s in chosen]
        # A collection exists, so TorchRec is installed.
        jagged = importlib.import_module("torchrec.sparse.jagged_tensor").KeyedJaggedTensor
        return jagged(
            keys=list(names),
            values=torch.cat([values for values, _, _ in chosen]).to(device),
            lengths=torch.cat([lengths for _, lengths, _ in chosen]).to(device),
            weights=torch.cat(all_scales).to(device) if weighted else None,
        )


def _is_weighted_mean(feature: FeatureSpec, module: nn.Module) -> bool:
    """True if torch refuses to compute what the spec takes from TorchRec."""
    return (
        isinstance(module, nn.EmbeddingBag)
        and module.mode == "mean"
        and bool(feature.table.weighted)
    )


def _from_module(
    feature: FeatureSpec, module: Any, values: Tensor, lengths: Tensor, scales: Tensor | None
) -> Tensor:
    device = _device(module)
    if not isinstance(module, nn.EmbeddingBag):
        return _pooled(feature, module(values.to(device)).cpu(), lengths, scales)
    if scales is not None and bool((scales == 1).all()):
        scales = None
    if scales is not None and module.mode != "sum":
        raise SpecError(
            f"table {feature.table.name!r}: the samples have weights, which its nn.EmbeddingBag "
            f"with mode={module.mode!r} does not take"
        )
    ends = lengths.cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends]) if module.include_last_offset else ends - lengths
    weights = None if scales is None else scales.to(device, module.weight.dtype)
    pooled: Tensor = module(values.to(device), starts.to(device), per_sample_weights=weights)
    return pooled


def _pooled(feature: FeatureSpec, rows: Tensor, lengths: Tensor, scales: Tensor | None) -> Tensor:
    """Pool rows `[N, dim]` of an unpooled module as the spec does: fp32 `[B, dim]`."""
    rows = rows.float()
    if scales is not None:
        rows = rows * scales[:, None]
    owners = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    sums = torch.zeros(len(lengths), rows.shape[-1]).index_add_(0, owners, rows)
    if feature.table.pooling == "mean":
        sums = sums / lengths.clamp(min=1)[:, None]
    return sums


def _check_norms(feature: FeatureSpec, module: nn.Module) -> None:
    """Refuse rows that a module with `max_norm` would scale at lookup."""
    most = getattr(module, "max_norm", None)
    weight = getattr(module, "weight", None)
    if most is None or not isinstance(weight, Tensor) or weight.dtype not in FLOATING:
        return
    for first in range(0, len(weight), _ROWS):
        rows = weight.detach()[first : first + _ROWS].float()
        norms = rows.norm(p=getattr(module, "norm_type", 2.0), dim=1)
        longer = (norms > most * (1 + 1e-5)).nonzero()
        if len(longer):
            row = int(longer[0])
            raise WeightsError(
                f"table {feature.table.name!r}: its {type(module).__name__} has max_norm={most:g}, "
                f"and row {first + row} a norm of {float(norms[row]):g}: the module scales such "
                "rows when they are looked up, a server does not; look every row up once, so that "
                "they are scaled in place, or scale them"
            )


def _device(module: nn.Module) -> torch.device:
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Run a module eagerly without gradients; errors name the module."""
    try:
        with torch.inference_mode():
            yield
    except (SpecError, WeightsError):
        raise
    # A module is the user's code, and may raise anything.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:300]
        raise WeightsError(f"{what} cannot be called on the samples: {reason}") from error
