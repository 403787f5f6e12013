from dataclasses import replace

import pytest
import torch

from kernels.errors import InputError
from kernels.fused_tables import FusedTables
from kernels.row_format import RowFormat

# 4 int8 rows of dim 3 (28 bytes), then 2 of dim 6 (20 bytes).
TABLES = FusedTables(
    memory=torch.zeros(48, dtype=torch.uint8),
    row_format=RowFormat.INT8,
    byte_offsets=(0, 28),
    rows=(4, 2),
    dims=(3, 6),
    means=(False, True),
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": (4, 3)}, "feature 1: 3 int8 rows of dim 6 at byte 28 .* memory's 48 bytes"),
        ({"byte_offsets": (0, 29)}, "feature 1: .* at byte 29"),
        ({"byte_offsets": (-1, 28)}, "feature 0: .* at byte -1"),
        ({"rows": (0, 2)}, "feature 0: 0 int8 rows"),
        ({"dims": (3, 0)}, "feature 1: 2 int8 rows of dim 0"),
        ({"rows": (4,)}, "expected one entry a feature everywhere"),
        ({"means": (True, True, True)}, "expected one entry a feature everywhere"),
        ({"memory": torch.zeros(48)}, r"expected uint8 \[bytes\], got torch.float32 \[48\]"),
        ({"memory": torch.zeros(4, 12, dtype=torch.uint8)}, r"got torch.uint8 \[4, 12\]"),
    ],
)
def test_tables_that_do_not_fit_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(TABLES, **changes)
