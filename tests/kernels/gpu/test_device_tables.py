from dataclasses import replace

import pytest
import torch

from kernels.errors import InputError
from kernels.gpu.device_tables import copy_to_device, in_place
from kernels.row_format import HEADER_BYTES, RowFormat
from tests.support.lookup_cases import CASES, Case, store

HOST = torch.device("cpu")


def test_no_access_ends_beyond_the_memory() -> None:
    # Rows of 16 bytes whose payload of 12 begins at 16: the last would be read 4 bytes too far.
    tables = store(Case([(3, 12)], [(0, False)]), RowFormat.INT8, first_byte=12)
    end = 12 + 3 * (HEADER_BYTES + 12)
    whole = in_place(tables)
    assert whole.payload_alignment == 16
    assert in_place(replace(tables, memory=tables.memory[:end])).payload_alignment == 4


def test_alignments_that_are_no_powers_of_two_are_refused() -> None:
    tables = store(CASES["sums"], RowFormat.INT8)
    with pytest.raises(InputError, match="alignment: expected 1, 2, 4, 8 or 16 bytes, got 3"):
        copy_to_device(tables, HOST, alignment=3)
