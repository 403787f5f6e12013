"""Pooled lookup of many tables at once: the one public operation of this package."""

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.bounds import locate, out_of_range
from kernels.errors import InputError
from kernels.fbgemm_backend import FbgemmBackend
from kernels.fbgemm_gpu_backend import FbgemmGpuBackend
from kernels.fused_tables import FusedTables
from kernels.gather_backend import GatherBackend
from kernels.native_backend import NativeBackend
from kernels.triton_backend import TritonBackend
from kernels.wording import counted


class Backend(Protocol):
    """A kernel prepared for some tables."""

    name: ClassVar[str]

    def __call__(self, bags: Bags) -> Tensor:
        """Pools checked bags: fp32 `[B, total_dim]`."""
        ...


# In order of preference: the first that accepts the tables is used. Ours has FBGEMM's bits, and is
# faster the smaller the batch (docs/benchmarks.md).
BACKENDS: tuple[
    type[NativeBackend]
    | type[FbgemmBackend]
    | type[GatherBackend]
    | type[TritonBackend]
    | type[FbgemmGpuBackend],
    ...,
] = (
    # Of tables on the host.
    NativeBackend,
    FbgemmBackend,
    GatherBackend,
    # Of tables on a CUDA device.
    TritonBackend,
    FbgemmGpuBackend,
)


class PooledLookup:
    """Fused lookup of all features of some tables, by the best backend or a forced one."""

    def __init__(self, tables: FusedTables, *, backend: str | None = None) -> None:
        """Picks a backend and prepares it.

        Args:
            tables: what each of the F features reads.
            backend: a backend's name to force it; None picks the first that can.

        Raises:
            InputError: no backend, or not the forced one, can look these tables up; says why.
        """
        self.tables = tables
        self._rows = torch.tensor(tables.rows, dtype=torch.int64, device=tables.memory.device)
        refusals = []
        for candidate in BACKENDS:
            if backend is not None and candidate.name != backend:
                continue
            reason = candidate.refusal(tables)
            if reason is None:
                self._run: Backend = candidate(tables)
                return
            refusals.append(f"{candidate.name}: {reason}")
        known = ", ".join(candidate.name for candidate in BACKENDS)
        why = "; ".join(refusals) or f"no backend is called {backend!r}, expected one of {known}"
        raise InputError(f"no kernel for {tables.row_format} tables: {why}")

    @property
    def backend(self) -> str:
        """Name of the backend in use."""
        return self._run.name

    def __call__(
        self, bags: Bags, *, ids_checked: bool = False, out: Tensor | None = None
    ) -> Tensor:
        """Pools every bag.

        Args:
            bags: ids of F features and B samples.
            ids_checked: the caller has made sure that every id lies inside its table.
            out: fp32 `[B, tables.total_dim]` to write to, its last axis contiguous; None makes it.

        Returns:
            `out`: each feature's columns in the order of `tables`.

        Raises:
            InputError: the bags are of another number of features, an id is outside its table, or
                `out` is of another dtype or shape.
            LostMemoryError: the tables' file has lost bytes; `out` is not to be used.
        """
        features = len(self.tables.dims)
        if bags.lengths.shape[0] != features:
            raise InputError(
                f"bags: expected {counted(features, 'feature')}, got {bags.lengths.shape[0]}"
            )
        if isinstance(self._run, TritonBackend):
            # Its kernels look at the ids themselves, on the device.
            return self._run(bags, ids_checked=ids_checked, out=out)
        if not ids_checked:
            self._check_ids(bags)
        pooled = self._pool(bags, out)
        if self.tables.file is not None:
            self.tables.file.check()
        return pooled

    def _pool(self, bags: Bags, out: Tensor | None) -> Tensor:
        if out is None:
            return self._run(bags)
        if isinstance(self._run, NativeBackend):
            return self._run(bags, out=out)
        shape = (bags.lengths.shape[1], self.tables.total_dim)
        if out.dtype != torch.float32 or out.shape != shape:
            raise InputError(f"out: expected float32 {list(shape)}, got {out.dtype} {out.shape}")
        return out.copy_(self._run(bags))

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
