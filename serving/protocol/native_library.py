"""Bindings of the compiled reader of requests (`native/reader/`)."""

import ctypes
import struct

from kernels.abi.ids import IdIndex as IndexFields
from kernels.native_library import keeping_gil, load_library
from serving.abi.reader import Layout

MAX_OUTPUTS = 16


class IdMapFields(ctypes.Structure):
    """`IdMap` of native/reader/raw_ids.h."""

    _fields_ = (
        ("index", IndexFields),
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
        ("hash", ctypes.c_int64),
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
    """`Model` of native/reader/model.h."""

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
        ("id_maps", ctypes.c_void_p),
        ("mapped", ctypes.c_int64),
        ("unknown_ids", ctypes.c_void_p),
        ("widths", ctypes.c_void_p),
        ("names", ctypes.c_char_p),
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
    )


class Request(ctypes.Structure):
    """`Request` of native/reader/request.h, up to its `layout`."""

    _fields_ = (
        ("model", ctypes.c_void_p),
        ("tensors", ctypes.c_void_p),
        ("present", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("contents", ctypes.c_void_p),
        ("successors", ctypes.c_void_p),
        ("own", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("dense_at", ctypes.c_void_p),
        ("dense_rows", ctypes.c_void_p),
        ("unknown", ctypes.c_void_p),
        ("layout", Layout),
    )


# Sizes of `Tensor` and `Bytes`.
TENSOR_BYTES, BYTES_BYTES = 48, 16
# `NamedTensor` of native/reader/request.h: name, data, datatype, rank and two sizes.
NAMED_TENSOR = struct.Struct("<8q")
# `Header` of native/reader/header.h: three texts, two numbers, the routing key in four, the number
# of outputs, and their texts.
Header = ctypes.c_int64 * (13 + 2 * MAX_OUTPUTS)
# `JsonHeader`: a `Header`, a flag, and two sets of flags of the outputs.
JsonHeader = ctypes.c_int64 * (13 + 2 * MAX_OUTPUTS + 3)


def _declare(library: ctypes.CDLL | ctypes.PyDLL) -> None:
    integer, address = ctypes.c_int64, ctypes.c_void_p
    library.sharded_infer_index_names.restype = None
    library.sharded_infer_index_names.argtypes = (ctypes.POINTER(Model),)
    for read in (library.sharded_infer_read_header, library.sharded_infer_read_predict_header):
        read.argtypes = (ctypes.c_char_p, integer, Header)
    library.sharded_infer_read_json_header.argtypes = (ctypes.c_char_p, integer, JsonHeader)
    library.sharded_infer_scan_body.argtypes = (address, ctypes.c_char_p, integer, integer)
    for scan in (library.sharded_infer_scan, library.sharded_infer_scan_predict):
        scan.argtypes = (address, ctypes.c_char_p, integer)
    library.sharded_infer_scan_tensors.argtypes = (address, ctypes.c_char_p, integer)
    library.sharded_infer_fill.argtypes = (address, address)


def _load() -> tuple[ctypes.CDLL, ctypes.PyDLL]:
    library = load_library("serving")
    with_gil = keeping_gil(library)
    _declare(library)
    _declare(with_gil)
    return library, with_gil


# Two bindings of one library: calls release the GIL, or keep it.
LIBRARIES = _load()
# Below, reading takes about a millisecond, and keeping the GIL is cheaper for all: a thread that
# releases it beside a busy one waits 5 ms for it.
LONG_BYTES = 1 << 24


def library_for(size: int) -> ctypes.CDLL | ctypes.PyDLL:
    """The binding for a message of that many bytes."""
    return LIBRARIES[size < LONG_BYTES]
