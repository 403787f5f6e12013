"""native/abi/lost_pages.h; written by native/abi/generate.py."""

import ctypes

from kernels.abi import LIBRARY
from kernels.native_library import check_layout, function_of


check_layout(LIBRARY, "lost_pages", 0x65F782B8, {})
guard = function_of(LIBRARY, "sharded_infer_guard", ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
mark_of = function_of(LIBRARY, "sharded_infer_mark_of", ctypes.c_void_p, ctypes.c_int32)
unguard = function_of(LIBRARY, "sharded_infer_unguard", None, ctypes.c_int32)
