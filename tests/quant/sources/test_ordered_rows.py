import numpy as np
import pytest
import torch

from quant.sources.ordered_rows import OrderedRows
from quant.sources.weight_source import TensorSource

WEIGHTS = {"a": torch.randn(500, 3), "b": torch.arange(20, dtype=torch.uint8).reshape(10, 2)}


def order_of(kind: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    match kind:
        case "any":
            return rng.permutation(500).astype(np.uint32)
        case "reversed":
            return np.arange(500, dtype=np.uint32)[::-1].copy()
        case _:  # a few rows first, then the others as they were
            first = rng.permutation(500)[:40]
            return np.concatenate([first, np.setdiff1d(np.arange(500), first)]).astype(np.uint32)


@pytest.mark.parametrize("kind", ["any", "reversed", "few"])
def test_ranges_are_read_in_the_new_order(kind: str) -> None:
    order = order_of(kind)
    source = OrderedRows(TensorSource(WEIGHTS), {"a": order})
    wanted = WEIGHTS["a"][torch.from_numpy(order.astype(np.int64))]
    for start, stop in ((0, 500), (0, 1), (499, 500), (37, 45), (100, 100), (0, 0), (500, 500)):
        assert torch.equal(source.read("a", start, stop), wanted[start:stop])
    assert source.shape("a") == (500, 3) and list(source.keys()) == ["a", "b"]


def test_other_weights_stay_as_they_are() -> None:
    source = OrderedRows(TensorSource(WEIGHTS), {"a": order_of("any")})
    assert torch.equal(source.read("b", 2, 9), WEIGHTS["b"][2:9])


def test_rows_that_are_near_are_read_together() -> None:
    asked = []

    class Counted(TensorSource):
        def read(self, key: str, start: int, stop: int) -> torch.Tensor:
            asked.append((start, stop))
            return super().read(key, start, stop)

    order = np.concatenate([np.arange(0, 500, 2), np.arange(1, 500, 2)]).astype(np.uint32)
    OrderedRows(Counted(WEIGHTS), {"a": order}).read("a", 0, 250)
    assert asked == [(0, 499)]


def test_rows_that_are_far_are_read_in_bounded_ranges() -> None:
    asked = []

    class Counted(TensorSource):
        def read(self, key: str, start: int, stop: int) -> torch.Tensor:
            asked.append(stop - start)
            return super().read(key, start, stop)

    wide = torch.arange(40_000.0)[:, None].expand(40_000, 256)
    # 1 KiB a row: rows 16 apart are read together, 8 MiB at once.
    for step, most in ((16, 8192), (17, 1)):
        order = np.concatenate([np.arange(first, 40_000, step) for first in range(step)])
        asked.clear()
        read = OrderedRows(Counted({"a": wide}), {"a": order.astype(np.uint32)}).read("a", 0, 2000)
        assert torch.equal(read[:, 0], torch.from_numpy(order[:2000]).float())
        assert max(asked) <= most and len(asked) == (2000 if most == 1 else 4)
