"""The interface of `PooledLookup`'s kernels."""

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.fused_tables import FusedTables


class LookupBackend(Protocol):
    """A kernel prepared for some tables; `name` is as in options and reports."""

    name: ClassVar[str]
    out_dtypes: ClassVar[frozenset[torch.dtype]]

    @staticmethod
    def refusal(tables: FusedTables) -> str | None:
        """Reason why it cannot look these tables up, or None."""
        ...

    def __init__(self, tables: FusedTables) -> None:
        """Prepares the kernel for the tables; raises InputError with the reason of `refusal`."""
        ...

    def pool(self, bags: Bags, out: Tensor | None = None) -> Tensor:
        """Pools every bag; thread-safe.

        Args:
            bags: ids of F features and B samples, all inside their tables.
            out: `[B, total_dim]` of one of `out_dtypes`, its last axis contiguous; None allocates
                fp32.
        """
        ...
