"""native/abi/reader.h; written by native/abi/generate.py."""

import ctypes

from kernels.native_library import check_layout, function_of
from serving.abi import KEEPING_GIL, LIBRARY
from serving.abi.model import Model


MAX_OUTPUTS = 16


class SharedRegion(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("name_bytes", ctypes.c_int64),
        ("path", ctypes.c_char_p),
        ("offset", ctypes.c_int64),
        ("byte_size", ctypes.c_int64),
        ("device", ctypes.c_uint64),
        ("inode", ctypes.c_uint64),
    )


class Group(ctypes.Structure):
    _fields_ = (
        ("features", ctypes.c_int64),
        ("bags", ctypes.c_int64),
        ("ids", ctypes.c_int64),
        ("weighted", ctypes.c_int64),
        ("lengths_at", ctypes.c_int64),
        ("values_at", ctypes.c_int64),
        ("weights_at", ctypes.c_int64),
    )


class Layout(ctypes.Structure):
    _fields_ = (
        ("batch", ctypes.c_int64),
        ("words", ctypes.c_int64),
        ("ids_outside", ctypes.c_int64),
        ("at_once", ctypes.c_int64),
        ("gaps", ctypes.c_int64),
        ("groups", Group * 2),
    )


class InputParts(ctypes.Structure):
    _fields_ = (
        ("layout", Layout),
        ("own", ctypes.c_void_p),
        ("dense_at", ctypes.c_void_p),
        ("dense_rows", ctypes.c_void_p),
        ("unknown", ctypes.c_void_p),
    )


class Text(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_int64),
        ("size", ctypes.c_int64),
    )


class OutputPlace(ctypes.Structure):
    _fields_ = (
        ("region", Text),
        ("offset", ctypes.c_int64),
        ("byte_size", ctypes.c_int64),
    )


class Header(ctypes.Structure):
    _fields_ = (
        ("name", Text),
        ("version", Text),
        ("id", Text),
        ("priority", ctypes.c_int64),
        ("timeout_us", ctypes.c_int64),
        ("reports_unknown", ctypes.c_int64),
        ("key", Text),
        ("key_is_number", ctypes.c_int64),
        ("key_number", ctypes.c_int64),
        ("output_count", ctypes.c_int64),
        ("outputs", Text * 16),
        ("places", OutputPlace * 16),
    )


check_layout(LIBRARY, "reader", 0x60A71919, {
    SharedRegion: 0x41EC2D26,
    Group: 0x681DFE7E,
    Layout: 0x678A6ED0,
    InputParts: 0x0480BB4A,
    Text: 0x45846D36,
    OutputPlace: 0xD6968D1B,
    Header: 0x98004719,
})
read_header = function_of(
    KEEPING_GIL,
    "sharded_infer_read_header",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.POINTER(Header),
)
read_predict_header = function_of(
    KEEPING_GIL,
    "sharded_infer_read_predict_header",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.POINTER(Header),
)
request_create = function_of(
    KEEPING_GIL,
    "sharded_infer_request_create",
    ctypes.c_void_p,
    ctypes.POINTER(Model),
)
request_destroy = function_of(KEEPING_GIL, "sharded_infer_request_destroy", None, ctypes.c_void_p)
request_parts = function_of(
    KEEPING_GIL,
    "sharded_infer_request_parts",
    ctypes.POINTER(InputParts),
    ctypes.c_void_p,
)
scan = function_of(
    LIBRARY,
    "sharded_infer_scan",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
scan_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_scan",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
scan_predict = function_of(
    LIBRARY,
    "sharded_infer_scan_predict",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
scan_predict_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_scan_predict",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
)
fill = function_of(LIBRARY, "sharded_infer_fill", ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)
fill_keeping_gil = function_of(
    KEEPING_GIL,
    "sharded_infer_fill",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
