"""The compiled library of sharded_infer; written by native/abi/generate.py."""

from kernels.native_library import keeping_gil, load_library

LIBRARY = load_library("sharded_infer")
KEEPING_GIL = keeping_gil(LIBRARY)
