"""Id policies before lookup: ids become rows, and rows out of range are refused or changed.

Padding is then removed from its bags, and ids of ordered tables become rows.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from kernels.bags import Bags
from kernels.bounds import locate, out_of_range
from sharded_infer.errors import RequestError
from sharded_infer.inputs.id_map import IdMap, IdMapping, leave_out
from sharded_infer.inputs.id_map import keep_ids as keep_ids
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.placed_ids import IdPlacing, RowMap
from sharded_infer.specs.id_steps import apply_steps
from sharded_infer.specs.model_spec import FeatureSpec, ModelSpec
from sharded_infer.tensors import tensor_of

# Clients choose which features a request shares: few patterns occur, and the bound keeps a hostile
# client from filling memory with them.
_MAX_POLICIES = 64


class IdPolicy:
    """Applies `id_steps`, `out_of_range` and `padding_idx` of tables to ids of `features`.

    The features are in bag order.
    """

    def __init__(self, features: Sequence[FeatureSpec], raw: Collection[str] = ()) -> None:
        """Prepare the check; ids of `raw` tables are not rows yet, and never out of range."""
        self.features = tuple(features)
        self._stepped = tuple(at for at, feature in enumerate(features) if feature.id_steps)
        self._rows = torch.tensor([f.table.rows for f in features], dtype=torch.int64)
        policies = [feature.table.out_of_range for feature in features]
        self._refuses = torch.tensor([policy == "error" for policy in policies])
        self._ignores = torch.tensor([policy == "ignore" for policy in policies])
        paddings = [feature.table.padding_idx for feature in features]
        # Checked ids are nonnegative, except raw ones.
        self._paddings = torch.tensor([-1 if p is None else p for p in paddings])
        self._pads = any(padding is not None for padding in paddings)
        self._in_place = tuple(feature.sequence is not None for feature in features)
        # Ids that are no rows. An id map has left -1 for an unknown id of a sequence.
        self._raw = torch.tensor(
            [
                f.is_tower_input
                or f.table.name in raw
                or (f.sequence is not None and f.table.id_map is not None)
                for f in features
            ]
        )
        self._has_raw = bool(self._raw.any())

    def apply(self, bags: Bags) -> tuple[Bags, int]:
        """Bring every id's row into its table's range, or refuse it; remove padding.

        In sequences, -1 replaces a dropped id. Also returns the number of ids out of range, without
        padding. Raises RequestError, naming the feature, the sample and the id, if the policy is
        `error`.
        """
        sent, bags = bags, self._with_steps(bags)
        outside = out_of_range(bags, self._rows)
        if outside is None:
            return self._without_padding(bags), 0
        counts = bags.lengths.sum(1)
        if self._has_raw:
            outside &= ~torch.repeat_interleave(self._raw, counts)
        refused = outside & torch.repeat_interleave(self._refuses, counts)
        if bool(refused.any()):
            position = int(refused.nonzero()[0])
            index, sample = locate(bags, position)
            feature = self.features[index]
            id_, row = int(sent.values[position]), int(bags.values[position])
            after = f", row {row} after id_steps," if feature.id_steps else ""
            raise RequestError(
                f"feature {feature.name!r}, sample {sample}: id {id_}{after} "
                f"is outside table {feature.table.name!r}, expected 0 to {feature.table.rows - 1}"
            )
        # Python's modulo: never negative.
        wrapped = bags.values.remainder(torch.repeat_interleave(self._rows, counts))
        # Ids in range, and raw ones, stay unchanged.
        values = torch.where(outside, wrapped, bags.values)
        ignored = outside & torch.repeat_interleave(self._ignores, counts)
        changed = Bags(values, bags.lengths, bags.weights)
        kept = leave_out(changed, ignored, self._in_place)
        return self._without_padding(kept), int(outside.sum())

    def _with_steps(self, bags: Bags) -> Bags:
        if not self._stepped:
            return bags
        ends = bags.lengths.sum(1).cumsum(0).tolist()
        values = bags.values.numpy().copy()
        for at in self._stepped:
            part = slice(ends[at - 1] if at else 0, ends[at])
            values[part] = apply_steps(self.features[at].id_steps, values[part])
        return Bags(tensor_of(values), bags.lengths, bags.weights)

    def _without_padding(self, bags: Bags) -> Bags:
        if not self._pads:
            return bags
        counts = bags.lengths.sum(1)
        padding = bags.values == torch.repeat_interleave(self._paddings, counts)
        if self._has_raw:
            padding &= ~torch.repeat_interleave(self._raw, counts)
        return leave_out(bags, padding, self._in_place) if bool(padding.any()) else bags


class InputPolicy:
    """Applies id maps and policies of a model's tables before lookups."""

    def __init__(self, spec: ModelSpec, id_maps: Mapping[str, RowMap] | None = None) -> None:
        """Prepare the check; raw ids of tables missing from `id_maps` stay raw.

        Raises InternalError if an ordered table's row places are missing.
        """
        self._features = spec.input_features
        self._maps = id_maps or {}
        self._id_maps = {name: m for name, m in self._maps.items() if isinstance(m, IdMap)}
        self._raw = {table.name for table in spec.mapped_tables} - self._id_maps.keys()
        self._policies: dict[tuple[int, ...], tuple[IdMapping, IdPolicy, IdPlacing]] = {}
        self._policy(tuple(range(len(self._features))))

    def apply(self, model_input: ModelInput) -> ModelInput:
        """Map raw ids, bring every id into range or refuse it, and remove padding.

        Ids of ordered tables then become rows. A checked input is returned unchanged: its ids are
        rows. Raises RequestError as `IdPolicy.apply` and `IdMapping.apply`, LostMemoryError if a
        file of an id map or of places was truncated.
        """
        if model_input.ids_checked:
            return model_input
        groups, outside = [], model_input.ids_outside
        unknown = Counter(dict(model_input.ids_unknown))
        for group in model_input.groups:
            checked, found, not_mapped = self._check(group)
            groups.append(checked)
            outside += found + sum(count for _, count in not_mapped)
            unknown.update(dict(not_mapped))
        return replace(
            model_input,
            groups=tuple(groups),
            ids_checked=True,
            ids_outside=outside,
            ids_unknown=tuple(sorted(unknown.items())),
            # Dropped ids are changed; ids out of range are never unchanged.
            may_have_gaps=any(
                one is not other for one, other in zip(groups, model_input.groups, strict=True)
            ),
        )

    def _check(self, group: JaggedBatch) -> tuple[JaggedBatch, int, tuple[tuple[str, int], ...]]:
        weights = None if group.weights is None else tensor_of(group.weights)
        bags = Bags(tensor_of(group.values), tensor_of(group.lengths), weights)
        mapping, policy, placing = self._policy(group.features)
        mapped, unknown = mapping.apply(bags)
        judged, outside = policy.apply(mapped)
        checked = placing.apply(judged)
        if checked is bags:
            return group, outside, unknown
        changed = JaggedBatch.trusted(
            group.features,
            checked.values.numpy(),
            checked.lengths.numpy(),
            None if checked.weights is None else checked.weights.numpy(),
        )
        return changed, outside, unknown

    def _policy(self, features: tuple[int, ...]) -> tuple[IdMapping, IdPolicy, IdPlacing]:
        policy = self._policies.get(features)
        if policy is None:
            chosen = [self._features[f] for f in features]
            policy = (
                IdMapping(chosen, self._id_maps),
                IdPolicy(chosen, self._raw),
                IdPlacing(chosen, self._maps),
            )
            if len(self._policies) < _MAX_POLICIES:
                self._policies[features] = policy
        return policy
