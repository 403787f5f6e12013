"""Runs the Triton kernels in Triton's interpreter, on tensors in host memory.

Triton decides at import whether kernels are interpreted, so these tests need their own process,
which `tests/kernels/gpu/test_triton_interpreted.py` starts.
"""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["*"]
