"""A model's sequences for compiled code (`native/abi/model.h`)."""

from collections.abc import Sequence

import numpy as np

from sharded_infer.specs.model_spec import ModelSpec


class NativeSequences:
    """Sequences of a model's S jagged inputs, kept alive for compiled code.

    Attributes:
        names: inputs with the lengths of whole sequences, except those that are also lengths of an
            input of the sequence's name.
        lengths: int32 `[S]`: number of the input with the lengths of each input's sequence, or -1.
        firsts: int32 `[S]`: position of the first input of each input's sequence, or -1.
        numbers: int64 `[S]`: numbers that come with an id, or 0 where the input has ids.
        shortest: int64 `[S]`: the fewest ids of a sample.
    """

    def __init__(self, spec: ModelSpec, inputs: Sequence[str], begin: int) -> None:
        """Finds the sequences' inputs; `begin` is the number of the first of `names`."""
        positions = {name: position for position, name in enumerate(inputs)}
        self.lengths = np.full(len(inputs), -1, np.int32)
        self.firsts = np.full(len(inputs), -1, np.int32)
        self.numbers = np.array([spec.sequence_numbers.get(name, 0) for name in inputs], np.int64)
        self.shortest = np.zeros(len(inputs), np.int64)
        self.names: list[str] = []
        for name, sequence in spec.sequences.items():
            if name in positions:
                lengths = 3 * positions[name] + 1
            else:
                lengths = begin + len(self.names)
                self.names.append(f"{name}.lengths")
            members = [positions[member] for member in sequence.members]
            self.lengths[members], self.firsts[members] = lengths, members[0]
            self.shortest[members] = sequence.shortest
