"""The inputs of a model's sequences: their lengths agree, and numbers travel like ids."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.errors import RequestError
from sharded_infer.specs.model_spec import ModelSpec

Ints = NDArray[np.int64]


class SequenceMembers:
    """The inputs of one model's sequences.

    Attributes:
        numbers: numbers per id of each dense input of a sequence.
        lengths_inputs: inputs with the lengths of a whole sequence.
        unweighted: inputs whose ids have no weights.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.numbers = spec.sequence_numbers
        self.lengths_inputs = frozenset(f"{name}.lengths" for name in spec.sequences)
        self._members = {name: one.members for name, one in spec.sequences.items()}
        self._shortest = {name: one.shortest for name, one in spec.sequences.items()}
        self.unweighted = {member for one in self._members.values() for member in one}
        self._of = {member: name for name, one in self._members.items() for member in one}

    def lengths_input(self, member: str, inputs: Mapping[str, Any]) -> str | None:
        """The input with an input's lengths: its own, else its sequence's; None if none came."""
        own = f"{member}.lengths"
        if own in inputs or member not in self._of:
            return own if own in inputs else None
        whole = f"{self._of[member]}.lengths"
        return whole if whole in inputs else None

    def read_numbers(
        self, name: str, array: NDArray[np.float32], lengths: Ints | None
    ) -> tuple[Ints, Ints]:
        """The bits of the numbers of a dense sequence input, and their count by sample.

        `array` is fp32 `[B, L]`, or `[N]` with lengths `[B]`, plus a dimension K for K numbers per
        id; `[B, L]` with lengths is padded. Raises RequestError, naming the input, for a wrong
        shape or length.
        """
        width = self.numbers[name]
        wide = array.ndim > 1 and (array.shape[-1] == width > 1 or array.ndim == 3)
        ids = array.shape[:-1] if wide else array.shape
        if width != (array.shape[-1] if wide else 1) or len(ids) not in (1, 2):
            last = "" if width == 1 else f", {width}"
            raise RequestError(
                f"input {name!r}: expected FP32 [B, L{last}], or [N{last}] with lengths, got "
                f"{list(array.shape)}"
            )
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.int64)
        rows = bits.reshape(*ids, width)
        if len(ids) == 2:
            each = np.full(ids[0], ids[1], np.int64)
            if lengths is None:
                return rows.reshape(-1), each * width
            if lengths.shape != each.shape or (lengths > each).any():
                raise RequestError(
                    f"input {name!r}: expected [{len(lengths)}, L] of L above all lengths, got "
                    f"{list(array.shape)}"
                )
            return rows[np.arange(ids[1]) < lengths[:, None]].reshape(-1), lengths * width
        if lengths is None:
            lengths = np.ones(ids[0], np.int64)
        # A sum of huge lengths could wrap around to the right total.
        if lengths.size and int(lengths.max()) > ids[0]:
            raise RequestError(
                f"input {name!r}: a length of {int(lengths.max())}, but numbers of "
                f"{counted(ids[0], 'id')} came"
            )
        if int(lengths.sum()) != ids[0]:
            raise RequestError(
                f"input {name!r}: the lengths sum to {int(lengths.sum())}, but numbers of "
                f"{counted(ids[0], 'id')} came"
            )
        return rows.reshape(-1), lengths * width

    def check(self, lengths: Mapping[str, Ints]) -> None:
        """Refuse a sequence whose inputs have different lengths, `[B]` of each jagged input.

        Raises RequestError, naming them, if some inputs are missing, a sample's lengths differ, or
        it is shorter than the sequence's `min_length`.
        """
        for name, members in self._members.items():
            came = [member for member in members if member in lengths]
            shortest = self._shortest[name]
            if not came:
                if shortest:
                    raise RequestError(
                        f"input {members[0]!r} is missing: sequence {name!r} has at least "
                        f"{counted(shortest, 'id')} (min_length)"
                    )
                continue
            first = came[0]
            expected = lengths[first] // self.numbers.get(first, 1)
            if shortest and (expected < shortest).any():
                sample = int(np.flatnonzero(expected < shortest)[0])
                raise RequestError(
                    f"input {first!r}, sample {sample}: {expected[sample]} long, expected at "
                    f"least {shortest} (min_length of sequence {name!r})"
                )
            for member in members:
                if member not in lengths:
                    raise RequestError(
                        f"input {member!r} is missing: sequence {name!r} has it beside {first!r}"
                    )
                found = lengths[member] // self.numbers.get(member, 1)
                if found.shape != expected.shape:
                    raise RequestError(
                        f"input {member!r}: {counted(len(found), 'sample')}, but {first!r} of the "
                        f"same sequence has {len(expected)}"
                    )
                if (found != expected).any():
                    sample = int(np.flatnonzero(found != expected)[0])
                    raise RequestError(
                        f"input {member!r}, sample {sample}: {found[sample]} long, but {first!r} "
                        f"of sequence {name!r} is {expected[sample]} long"
                    )
