"""Pooled lookup of many tables at once: the one public operation of this package."""

from math import inf
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from kernels.backends.fbgemm import FbgemmBackend
from kernels.backends.native import NativeBackend
from kernels.bags import Bags
from kernels.bounds import locate, out_of_range
from kernels.errors import InputError, InternalError
from kernels.fused_tables import FusedTables
from kernels.tiers.started_rows import StartedRows
from kernels.wording import counted


class LookupBackend(Protocol):
    """A kernel prepared for some tables; `name` is as in options and reports."""

    name: ClassVar[str]
    out_dtypes: ClassVar[frozenset[torch.dtype]]

    @staticmethod
    def refusal(tables: FusedTables) -> str | None:
        """Reason why it cannot look these tables up, or None."""

    def __init__(self, tables: FusedTables) -> None:
        """Prepares the kernel for the tables; raises InputError with the reason of `refusal`."""

    def pool(self, bags: Bags, out: Tensor | None = None) -> Tensor:
        """Pools every bag, of ids inside their tables; thread-safe.

        `out` is `[B, total_dim]` of one of `out_dtypes`, its last axis contiguous; None: new fp32.
        """


# In order of preference: the first that accepts the tables is used. Ours has FBGEMM's bits, and is
# faster the smaller the batch (docs/benchmarks.md).
BACKENDS: tuple[type[LookupBackend], ...] = (NativeBackend, FbgemmBackend)


class PooledLookup:
    """Fused lookup of all features of some tables, by the best backend or a forced one."""

    def __init__(self, tables: FusedTables, *, backend: str | None = None) -> None:
        """Prepares a backend; InputError, with the reasons, if none, or not the forced one, can."""
        self.tables = tables
        self._total_dim, self._files = tables.total_dim, tables.files
        self._rows = torch.tensor(tables.rows, dtype=torch.int64)
        refusals = []
        for candidate in BACKENDS:
            if backend is not None and candidate.name != backend:
                continue
            reason = candidate.refusal(tables)
            if reason is None:
                self._backend = candidate(tables)
                return
            refusals.append(f"{candidate.name}: {reason}")
        known = ", ".join(candidate.name for candidate in BACKENDS)
        why = "; ".join(refusals) or f"no backend is called {backend!r}, expected one of {known}"
        raise InputError(f"no kernel for {tables.row_format} tables: {why}")

    @property
    def backend(self) -> str:
        """Name of the backend in use."""
        return self._backend.name

    def start(self, bags: Bags) -> StartedRows:
        """Starts to read rows of tables in tiers, of valid ids; the caller closes them."""
        tables = self.tables
        overlays = tables.overlays or (None,) * len(tables.tiers)
        counts = bags.lengths.sum(1).tolist()
        return StartedRows(tables.tiers, overlays, bags.values.contiguous(), counts)

    def __call__(
        self,
        bags: Bags,
        *,
        ids_checked: bool = False,
        out: Tensor | None = None,
    ) -> Tensor:
        """Pools every bag into `out`, each feature's columns in the order of `tables`.

        Args:
            ids_checked: the caller guarantees that every id is inside its table.
            out: `[B, tables.total_dim]` to write to, fp32 or another dtype of the backend's
                `out_dtypes`, its last axis contiguous; None allocates fp32.

        Raises:
            InputError: the bags have another number of features, an id is outside its table, or
                `out` has another dtype or shape.
            LostMemoryError: a file of rows has lost bytes; do not use `out`.
            RowReadError: rows that are not in memory cannot be read.
        """
        features = len(self.tables.dims)
        if bags.lengths.shape[0] != features:
            raise InputError(
                f"bags: expected {counted(features, 'feature')}, got {bags.lengths.shape[0]}"
            )
        if out is not None:
            self._check_out(out, bags.lengths.shape[1])
        if not ids_checked:
            self._check_ids(bags)
        if self.tables.tiers:
            pooled = self._read_and_pool(bags, out)
        else:
            pooled = self._backend.pool(bags, out)
        for file in self._files:
            file.check()
        return pooled

    def _read_and_pool(self, bags: Bags, out: Tensor | None) -> Tensor:
        if not isinstance(self._backend, NativeBackend):
            raise InternalError(f"tables in tiers are not looked up by {self._backend.name}")
        rows = self.start(bags)
        try:
            rows.wait(inf)
            return self._backend.pool(bags, out, rows.places)
        finally:
            rows.close()

    def _check_out(self, out: Tensor, batch: int) -> None:
        shape, dtypes = (batch, self._total_dim), self._backend.out_dtypes
        if out.dtype not in dtypes or out.shape != shape or out.stride(1) != 1:
            names = " or ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
            raise InputError(
                f"out: expected {names} {list(shape)} of contiguous rows, "
                f"got {out.dtype} {list(out.shape)} of strides {out.stride()}"
            )

    def _check_ids(self, bags: Bags) -> None:
        total = bags.values.numel()
        # A sum of huge lengths could wrap around to the right total.
        fitting = bool(((bags.lengths >= 0) & (bags.lengths <= total)).all())
        if not fitting or int(bags.lengths.sum()) != total:
            raise InputError(
                f"lengths: expected non-negative ones that sum to {counted(total, 'value')}, "
                f"got a sum of {int(bags.lengths.sum())}"
            )
        outside = out_of_range(bags, self._rows)
        if outside is not None:
            position = int(outside.nonzero()[0])
            feature, sample = locate(bags, position)
            raise InputError(
                f"feature {feature}, sample {sample}: id {int(bags.values[position])} "
                f"is outside [0, {self.tables.rows[feature]})"
            )
