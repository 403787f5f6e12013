"""native/abi/model.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi.ids import IdIndex
from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY


class Policy(IntEnum):
    REFUSE = 0
    IGNORE = 1
    MODULO = 2
    PASS = 3


class IdOperation(IntEnum):
    ADD = 0
    MULTIPLY = 1
    DIVIDE = 2
    REMAINDER = 3
    AT_LEAST = 4
    AT_MOST = 5


class Unknown(IntEnum):
    REFUSED = 0
    ABSENT = 1
    SHARED_ROW = 2
    HASHED_ROW = 3


class IdMap(ctypes.Structure):
    _fields_ = (
        ("index", IdIndex),
        ("mark", ctypes.c_void_p),
        ("last", ctypes.c_void_p),
        ("last_byte", ctypes.c_int64),
        ("unknown", ctypes.c_int64),
        ("shared_rows", ctypes.c_void_p),
        ("segments", ctypes.c_int64),
        ("segment_ids", ctypes.c_int64),
        ("bucket_rows", ctypes.c_int64),
        ("first_row", ctypes.c_int64),
        ("hashed_rows", ctypes.c_int64),
        ("divided", ctypes.c_int64),
        ("counted", ctypes.c_int64),
        ("hash", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("table_rows", ctypes.c_uint64),
        ("part_hashes", ctypes.c_void_p),
        ("part_rows", ctypes.c_void_p),
        ("parts", ctypes.c_int64),
        ("places", ctypes.c_void_p),
        ("placed", ctypes.c_uint64),
        ("placed_rows", ctypes.c_uint64),
    )


class Model(ctypes.Structure):
    _fields_ = (
        ("features", ctypes.c_int64),
        ("sparse", ctypes.c_int64),
        ("dense", ctypes.c_int64),
        ("max_batch", ctypes.c_int64),
        ("max_ids", ctypes.c_int64),
        ("most_copies", ctypes.c_int64),
        ("sources", ctypes.c_void_p),
        ("required", ctypes.c_void_p),
        ("string_hashes", ctypes.c_void_p),
        ("string_seeds", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("policies", ctypes.c_void_p),
        ("paddings", ctypes.c_void_p),
        ("step_starts", ctypes.c_void_p),
        ("operations", ctypes.c_void_p),
        ("operands", ctypes.c_void_p),
        ("id_maps", ctypes.c_void_p),
        ("mapped", ctypes.c_int64),
        ("unknown_ids", ctypes.c_void_p),
        ("widths", ctypes.c_void_p),
        ("names", ctypes.c_void_p),
        ("name_starts", ctypes.c_void_p),
        ("slot_mask", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("whole_lengths", ctypes.c_int64),
        ("lengths", ctypes.c_void_p),
        ("firsts", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
        ("shortest", ctypes.c_void_p),
        ("has_numbers", ctypes.c_int64),
        ("longest", ctypes.c_void_p),
        ("computed_once", ctypes.c_void_p),
        ("has_sequences", ctypes.c_int64),
        ("max_inputs", ctypes.c_int64),
        ("message_limits", ctypes.c_void_p),
    )


check_layout(LIBRARY, "model", 0x03338A82, {
    IdMap: 0x9E49C8EF,
    Model: 0xC226C3C6,
})
index_names = function_of(KEEPING_GIL, "sharded_infer_index_names", None, ctypes.POINTER(Model))
