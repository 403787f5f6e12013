"""native/abi/pair_layers.h; written by native/abi/generate.py."""

import ctypes
from enum import IntEnum

from kernels.abi import LIBRARY
from kernels.native_library import check_layout, function_of


class Activation(IntEnum):
    LINEAR = 0
    RELU = 1
    SLOPE = 2
    SIGMOID = 3


class Layer(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("slope", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("activation", ctypes.c_int32),
    )


class PairLayers(ctypes.Structure):
    _fields_ = (
        ("positions", ctypes.c_void_p),
        ("candidates", ctypes.c_void_p),
        ("by_position", ctypes.c_void_p),
        ("by_candidate", ctypes.c_void_p),
        ("layers", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("space", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("layer_count", ctypes.c_int64),
    )


check_layout(LIBRARY, "pair_layers", 0xB330DA22, {
    Layer: 0x74B32ED3,
    PairLayers: 0xB9A6B110,
})
pair_layers_space = function_of(
    LIBRARY,
    "sharded_infer_pair_layers_space",
    ctypes.c_int64,
    ctypes.POINTER(PairLayers),
)
pair_layers = function_of(
    LIBRARY,
    "sharded_infer_pair_layers",
    None,
    ctypes.c_int32,
    ctypes.POINTER(PairLayers),
)
