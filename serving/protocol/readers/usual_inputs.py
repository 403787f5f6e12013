"""Inputs of every form, rewritten in those that compiled code reads."""

from collections.abc import Container, Iterator

import numpy as np

from serving.protocol.wire_tensors import WireTensor
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.request_reader import VALUES, WEIGHTS
from sharded_infer.specs.model_spec import ModelSpec


class UsualInputs:
    """The inputs of one model's requests: jagged ones as ids, lengths and weights."""

    def __init__(self, spec: ModelSpec) -> None:
        self._dense = tuple(spec.dense.inputs)
        self._owners = tuple(feature.name for feature in spec.input_features)
        self._numbers = spec.sequence_numbers
        self._unweighted = spec.unweighted_inputs

    def tensors(self, found: ModelInput, came: Container[str]) -> Iterator[WireTensor]:
        """Tensors of a request that was read, with its ids as sent.

        Args:
            came: names of its inputs.
        """
        for name, dense in zip(self._dense, found.dense, strict=True):
            yield WireTensor(name, "FP32", dense.shape, dense.astype("<f4").tobytes())
        written: set[str] = set()
        for group in found.groups:
            begin = 0
            for place, feature in enumerate(group.features):
                end = begin + int(group.lengths[place].sum())
                name = self._owners[feature]
                if name not in written and (name in came or VALUES in came):
                    written.add(name)
                    weighted = f"{name}.weights" in came or WEIGHTS in came
                    yield from self._feature(group, place, slice(begin, end), name, weighted)
                begin = end

    def _feature(
        self, group: JaggedBatch, place: int, part: slice, name: str, weighted: bool
    ) -> Iterator[WireTensor]:
        values, lengths = group.values[part], group.lengths[place]
        width = self._numbers.get(name)
        if width is None:
            yield WireTensor(name, "INT64", values.shape, values.astype("<i8").tobytes())
        else:
            lengths = lengths // width
            shape = (-1, width) if width > 1 else (-1,)
            numbers = values.astype(np.uint32).view(np.float32).reshape(shape)
            yield WireTensor(name, "FP32", numbers.shape, numbers.astype("<f4").tobytes())
        yield WireTensor(f"{name}.lengths", "INT64", lengths.shape, lengths.astype("<i8").tobytes())
        # Those of other inputs are 1.
        if weighted and group.weights is not None and name not in self._unweighted:
            weights = group.weights[part]
            yield WireTensor(
                f"{name}.weights", "FP32", weights.shape, weights.astype("<f4").tobytes()
            )
