"""Tables' policies applied to whole model inputs, before anything is looked up."""

from dataclasses import replace

from kernels.bags import Bags
from sharded_infer.arrays import tensor_of
from sharded_infer.batch import JaggedBatch, ModelInput
from sharded_infer.id_policy import IdPolicy
from sharded_infer.spec import ModelSpec

# Clients choose which features a request shares: few patterns occur, and the bound keeps a
# hostile one from filling memory with them.
_MAX_POLICIES = 64


class InputPolicy:
    """Applies each table's `out_of_range` and `padding_idx` to the inputs of one model."""

    def __init__(self, spec: ModelSpec) -> None:
        """Prepares for inputs of one group of all features.

        Args:
            spec: the model.
        """
        self._features = spec.features
        self._policies: dict[tuple[int, ...], IdPolicy] = {}
        self._policy(tuple(range(len(self._features))))

    def apply(self, model_input: ModelInput) -> ModelInput:
        """Makes every id lie inside its table, or refuses; leaves padding out.

        Args:
            model_input: ids as they came; one that is checked already is returned as it is.

        Raises:
            RequestError: a feature whose policy is `error` has an id outside its table; names the
                feature, the sample and the id.
        """
        if model_input.ids_checked:
            return model_input
        groups, total = [], 0
        for group in model_input.groups:
            checked, outside = self._check(group)
            groups.append(checked)
            total += outside
        return replace(model_input, groups=tuple(groups), ids_checked=True, ids_outside=total)

    def _check(self, group: JaggedBatch) -> tuple[JaggedBatch, int]:
        weights = None if group.weights is None else tensor_of(group.weights)
        bags = Bags(tensor_of(group.values), tensor_of(group.lengths), weights)
        checked, outside = self._policy(group.features).apply(bags)
        if checked is bags:
            return group, outside
        changed = JaggedBatch(
            group.features,
            checked.values.numpy(),
            checked.lengths.numpy(),
            None if checked.weights is None else checked.weights.numpy(),
        )
        return changed, outside

    def _policy(self, features: tuple[int, ...]) -> IdPolicy:
        policy = self._policies.get(features)
        if policy is None:
            policy = IdPolicy([self._features[f] for f in features])
            if len(self._policies) < _MAX_POLICIES:
                self._policies[features] = policy
        return policy
