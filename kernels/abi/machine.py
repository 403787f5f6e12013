"""native/abi/machine.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import LIBRARY
from kernels.native_library import check_layout, function_of


class InstructionSet(IntEnum):
    BASELINE = 0
    AVX2 = 1
    AVX512 = 2


check_layout(LIBRARY, "machine", 0x971562F0, {})
features = function_of(LIBRARY, "sharded_infer_features", ctypes.c_uint32)
