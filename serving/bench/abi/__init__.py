"""The compiled library of serving.bench; written by native/abi/generate.py."""

from kernels.native_library import keeping_gil, load_library

LIBRARY = load_library("serving.bench")
KEEPING_GIL = keeping_gil(LIBRARY)
