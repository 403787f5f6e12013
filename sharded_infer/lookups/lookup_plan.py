"""All work for one group of features, as compiled code reads it."""

import ctypes
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kernels.abi import lookup_run as abi
from kernels.backends.native import NativeBackend, kernel_features, kernel_for_compiled_code
from kernels.mapped_file import MappedFile
from sharded_infer.lookups.default_rows import FeatureDefault
from sharded_infer.lookups.steps import Part, RemoteStep, Step
from sharded_infer.lookups.structures import Structures
from sharded_infer.specs.model_spec import FeatureSpec


class Parts:
    """What several ranks read of a group, for one call that chooses their ids.

    Attributes:
        entries: those whose ids are copied.
        most_reads: of these, entries of one feature at most, whose columns may be cut.
        addresses: of their fields, for compiled code.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        copied = Counter(f for part in self.parts if not part.is_adjacent for f in part.features)
        self.entries, self.most_reads = copied.total(), max(copied.values(), default=0)
        addresses = [ctypes.addressof(part.fields) for part in self.parts]
        self.addresses = (ctypes.c_void_p * len(addresses))(*addresses)


class LookupPlan:
    """The steps for one group of features.

    Attributes:
        remote: those of other hosts.
        is_compiled: one call runs the steps of this process; else a forced backend runs each.
        is_merged: sums wait for those of other hosts, or of a forced backend.
        defaults: of the features whose tables have default rows, by position in the group.
        features: of the group, in order, where other hosts are used.
        own_parts, remote_parts: of `steps` and `remote`.
        apart: columns of each result that waits for those of other hosts.
        step_count: of the steps in one call.
        address: of `fields`, for compiled code.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        remote: Sequence[RemoteStep] = (),
        *,
        summed: Iterable[tuple[int, int]] = (),
        means: Sequence[tuple[int, int, int]] = (),
        defaults: Mapping[int, FeatureDefault] | None = None,
        features: Sequence[FeatureSpec] = (),
    ) -> None:
        """Lowers the steps.

        Args:
            summed: (first column, width) of the features split by rows.
            means: (position in the group, first column, width) of each of these with mean pooling.
        """
        self.steps, self.remote = tuple(steps), tuple(remote)
        self.defaults, self.features = defaults or {}, tuple(features)
        self.is_compiled = all(step.lookup.backend == NativeBackend.name for step in steps)
        self.is_merged = bool(remote) or not self.is_compiled
        compiled = self.steps if self.is_compiled else ()
        self.own_parts = Parts(step.part for step in self.steps)
        self.remote_parts = Parts(step.part for step in self.remote)
        self.apart = [step.part.width for step in compiled if step.part.is_split and remote]
        files = dict.fromkeys(file for step in compiled for file in step.lookup.tables.files)
        self._structures = structures = Structures()
        self.fields = abi.LookupPlan(
            *structures.listed(abi.LookupStep, (_fields(step, structures) for step in compiled)),
            *structures.listed(abi.LookupZeros, _joined(summed)),
            *structures.listed(abi.LookupMean, means),
            *structures.listed(abi.LookupWatch, (file.watch for file in files)),
            *(kernel_for_compiled_code().instruction_set, self.is_merged),
        )
        self.address, self.step_count = ctypes.addressof(self.fields), len(compiled)

    @property
    def files(self) -> Iterable[MappedFile]:
        """The files that rows are mapped from."""
        return (file for step in self.steps for file in step.lookup.tables.files)


def _fields(step: Step, structures: Structures) -> tuple[object, ...]:
    """Those of `LookupStep`."""
    tables, read = step.lookup.tables, step.part
    tiers, _ = structures.listed(
        abi.LookupTier, ((part.tier.address, part.first_row) for part in tables.tiers)
    )
    return (
        ctypes.addressof(read.fields),
        structures.keep(kernel_features(tables)),
        None if read.is_split else structures.keep(kernel_features(tables, read.columns)),
        tiers if tables.tiers else None,
        kernel_for_compiled_code().formats[tables.row_format],
    )


def _joined(columns: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Adjacent columns together: (first, width)."""
    joined: list[tuple[int, int]] = []
    for first, width in sorted(columns):
        if joined and sum(joined[-1]) == first:
            joined[-1] = joined[-1][0], joined[-1][1] + width
        else:
            joined.append((first, width))
    return joined
