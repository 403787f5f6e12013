import threading

import pytest
import torch

from sharded_infer.engines.device.tower.products import exact_products, with_tf32

MATMUL = torch.backends.cuda.matmul


def test_switches_are_put_back_as_they_were_found() -> None:
    MATMUL.allow_fp16_reduced_precision_reduction = (False, False)
    MATMUL.fp32_precision = "tf32"
    try:
        with exact_products():
            assert MATMUL.fp32_precision == "ieee"
            # Other threads may read the older setting, which disagreeing ones make fail.
            assert with_tf32(lambda: MATMUL.fp32_precision) == "tf32"
            assert with_tf32(torch.get_float32_matmul_precision) == "high"
            assert MATMUL.fp32_precision == "ieee"
        assert MATMUL.fp32_precision == "tf32"
        assert not MATMUL.allow_fp16_reduced_precision_reduction
        assert not MATMUL.allow_fp16_reduced_precision_reduction_split_k
    finally:
        MATMUL.allow_fp16_reduced_precision_reduction = True
        MATMUL.fp32_precision = "none"
    assert MATMUL.allow_fp16_reduced_precision_reduction_split_k


def test_a_run_that_fails_leaves_nothing_behind() -> None:
    def fails() -> None:
        raise ValueError("no")

    before = MATMUL.fp32_precision
    with pytest.raises(ValueError, match="no"), exact_products():
        with_tf32(fails)
    assert MATMUL.fp32_precision == before


def test_runs_take_turns() -> None:
    order = []

    def other() -> None:
        with exact_products():
            order.append("other")

    with exact_products():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.05)
        order.append("this")
    thread.join()
    assert order == ["this", "other"]
