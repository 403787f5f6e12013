"""torch's global settings for matrix products on CUDA devices, set for one tower's run at a time.

All threads share the settings. A run holds a lock while it starts its kernels, then restores them;
a CUDA graph keeps the settings of its capture.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

_RUNNING: Final = threading.Lock()
_EXACT = "ieee"


@contextmanager
def exact_products() -> Iterator[None]:
    """Inside, fp32 products and convolutions use full fp32, and all sums are kept in fp32.

    By default torch computes convolutions in TF32, and may add partial sums of bf16 and fp16
    products in the same dtype, where fp16 sums can overflow.
    """
    matmul: Any = torch.backends.cuda.matmul
    convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    wanted = (
        (matmul, "fp32_precision", _EXACT),
        (convolutions, "fp32_precision", _EXACT),
        (matmul, "allow_bf16_reduced_precision_reduction", False),
        (matmul, "allow_fp16_reduced_precision_reduction", False),
        (matmul, "allow_fp16_accumulation", False),
    )
    with _RUNNING:
        previous = [(owner, name, _setting(owner, name)) for owner, name, _ in wanted]
        try:
            for owner, name, value in wanted:
                setattr(owner, name, value)
            yield
        finally:
            for owner, name, value in previous:
                setattr(owner, name, value)


def _setting(owner: Any, name: str) -> Any:
    """The value of a setting, in the form that its setter takes."""
    value = getattr(owner, name)
    # Some settings include a second one, split-K; setting the first alone turns it on.
    return value if getattr(owner, f"{name}_split_k", True) else (value, False)


def with_tf32(product: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs one product with TF32 allowed; call it inside `exact_products`."""
    matmul: Any = torch.backends.cuda.matmul
    # Unlike `fp32_precision`, it changes torch's older settings too, which other threads may read.
    matmul.allow_tf32 = True
    try:
        return product(*args, **kwargs)
    finally:
        matmul.allow_tf32 = False


def allow_tf32(program: GraphModule, products: Sequence[Node]) -> None:
    """Makes these nodes of a program run `with_tf32`, in place."""
    graph = program.graph
    for node in products:
        with graph.inserting_before(node):
            args: tuple[Any, ...] = (node.target, *node.args)
            wrapped = graph.call_function(with_tf32, args, dict(node.kwargs))
        node.replace_all_uses_with(wrapped)
        graph.erase_node(node)
    program.recompile()
