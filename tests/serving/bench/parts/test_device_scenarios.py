import threading
import time

import numpy as np
import pytest

from serving.bench.parts.device_scenarios import run_offline, run_server
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput


def request(size: int) -> ModelInput:
    lengths = np.ones((1, size), np.int64)
    group = JaggedBatch((0,), np.zeros(size, np.int64), lengths)
    return ModelInput(size, (group,), (), ids_checked=True)


class Engine:
    """Takes some milliseconds a batch, one batch at a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.sizes: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, batch: ModelInput) -> None:
        with self._lock:
            self.sizes.append(batch.batch_size)
            time.sleep(self.seconds)


def test_offline_runs_as_fast_as_the_engine() -> None:
    engine = Engine(0.005)
    rate = run_offline(engine, [request(10), request(30)], threads=3, seconds=0.5)
    assert len(engine.sizes) > 10
    # 20 samples in 5 ms, and whatever a busy machine adds.
    assert 400 < rate < 4100


def test_requests_that_wait_are_merged_up_to_the_largest_batch() -> None:
    engine = Engine(0.02)
    figures = run_server(engine, [request(4)], rate=400, seconds=0.5, threads=1, max_batch=16)
    assert max(engine.sizes) == 16 and figures.mean_batch > 4
    # One by one they would take 20 ms each, four times as long as they take to come.
    assert figures.latency_ms["p50"] >= 19
    assert sum(engine.sizes[1:]) == 4 * 200


def test_a_lone_request_is_run_when_it_is_due() -> None:
    engine = Engine(0.001)
    figures = run_server(engine, [request(3)], rate=20, seconds=0.5, threads=2, max_batch=100)
    assert figures.offered_per_second > 0 and figures.answered_per_second > 0
    assert 1 <= figures.latency_ms["p50"] < 1000
    assert all(size % 3 == 0 for size in engine.sizes)


def test_an_engine_that_fails_ends_it() -> None:
    def fail(_: ModelInput) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        run_offline(fail, [request(1)], threads=2, seconds=0.1)
