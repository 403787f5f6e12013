"""These tests run the Triton kernels in Triton's interpreter, on tensors in host memory.

Whether kernels are interpreted is decided when Triton is imported, so that they need a process of
their own: `tests/kernels/gpu/test_triton_interpreted.py` starts it.
"""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["*"]
