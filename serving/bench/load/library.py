"""The compiled load generator, which is not in wheels (`serving/bench/abi`)."""

import ctypes

from kernels.native_library import library_path


def load_generator_refusal() -> str | None:
    """Reason why the load generator cannot run here; None if it can."""
    if library_path("serving.bench") is None:
        return (
            "the load generator is compiled code that wheels leave out: install a checkout with a "
            "C++ compiler and SHARDED_INFER_BENCH=1, as `make setup` does"
        )
    try:
        ctypes.CDLL("libnghttp2.so.14")
    except OSError:
        return "the load generator needs libnghttp2.so.14: apt install libnghttp2-14"
    return None
