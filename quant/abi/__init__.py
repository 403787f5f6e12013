"""The compiled library of quant; written by native/abi/generate.py."""

from kernels.native_library import keeping_gil, load_library

LIBRARY = load_library("quant")
KEEPING_GIL = keeping_gil(LIBRARY)
