"""Kernels are interpreted in a process of their own, that of `gpu/test_triton_interpreted.py`."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["*"]
