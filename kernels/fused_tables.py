"""Tables of one row format in one memory, for one fused lookup."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.mapped_file import MappedFile
from kernels.row_format import RowFormat
from kernels.row_overlay import RowOverlay
from kernels.tiers.row_tier import TierPart
from kernels.wording import counted


@dataclass(frozen=True, slots=True)
class FusedTables:
    """The tables of a fused lookup: one entry a feature, in output order.

    Features that share a table have the same byte offset, rows and dim.

    Attributes:
        memory: uint8 `[bytes]`, the stored rows of every table (a mapped table file, or memory).
        byte_offsets: start of each feature's table in `memory`.
        means: True if a feature's bags are averaged, False if summed.
        file: the file that `memory` maps; None for other memory.
        overlays: changed rows of each feature's table, or None; empty: no table has any.
        tiers: of each feature's rows, instead of `memory`, then the whole file; empty: none.
    """

    memory: Tensor
    row_format: RowFormat
    byte_offsets: tuple[int, ...]
    rows: tuple[int, ...]
    dims: tuple[int, ...]
    means: tuple[bool, ...]
    file: MappedFile | None = None
    overlays: tuple[RowOverlay | None, ...] = ()
    tiers: tuple[TierPart, ...] = ()

    def __post_init__(self) -> None:
        """Raises InputError, with the feature's position, for tables outside the memory."""
        if self.memory.dtype != torch.uint8 or self.memory.dim() != 1:
            raise InputError(
                f"memory: expected uint8 [bytes], got {self.memory.dtype} {list(self.memory.shape)}"
            )
        counts = {len(self.byte_offsets), len(self.rows), len(self.dims), len(self.means)}
        counts |= {len(given) for given in (self.overlays, self.tiers) if given}
        if counts == {0} or len(counts) != 1:
            raise InputError(f"expected one entry a feature everywhere, got lengths {counts}")
        for feature, (offset, rows, dim) in enumerate(
            zip(self.byte_offsets, self.rows, self.dims, strict=True)
        ):
            end = offset + self.own_rows(feature) * self.row_format.row_bytes(dim)
            if rows < 1 or dim < 1 or offset < 0 or end > self.memory.numel():
                raise InputError(
                    f"feature {feature}: {rows} {self.row_format} rows of dim {dim} at byte "
                    f"{offset} do not lie inside the memory's "
                    f"{counted(self.memory.numel(), 'byte')}"
                )

    @property
    def total_dim(self) -> int:
        """Width of the pooled output."""
        return sum(self.dims)

    def own_rows(self, feature: int) -> int:
        """Rows of a feature's table in `memory`."""
        rows, overlay = self.rows[feature], self.overlays[feature] if self.overlays else None
        return rows if overlay is None else min(rows, overlay.own_rows)

    @property
    def has_overlays(self) -> bool:
        """True if a table has changed rows in front of its own."""
        return any(overlay is not None for overlay in self.overlays)

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The files that rows are mapped from."""
        found = [] if self.file is None else [self.file]
        for overlay in dict.fromkeys(self.overlays):
            found += () if overlay is None else overlay.files
        return tuple(dict.fromkeys(found))

    def select(self, features: Sequence[int]) -> "FusedTables":
        """The same memory with only the given features, in the given order."""
        return FusedTables(
            memory=self.memory,
            row_format=self.row_format,
            byte_offsets=tuple(self.byte_offsets[f] for f in features),
            rows=tuple(self.rows[f] for f in features),
            dims=tuple(self.dims[f] for f in features),
            means=tuple(self.means[f] for f in features),
            file=self.file,
            overlays=tuple(self.overlays[f] for f in features) if self.overlays else (),
            tiers=tuple(self.tiers[f] for f in features) if self.tiers else (),
        )
