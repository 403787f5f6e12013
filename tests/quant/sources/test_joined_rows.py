import pytest
import torch

from quant.sources.joined_rows import JoinedRows
from quant.sources.weight_source import SourceError, TensorSource

WHOLE = torch.arange(40).view(10, 4)
SPLITS = [[10], [3, 7], [0, 4, 0, 6, 0], [1] * 10]


def _joined(split: list[int]) -> JoinedRows:
    parts = [TensorSource({"part": rows}, "a part") for rows in WHOLE.split(split)]
    return JoinedRows({"ads": [(part, "part") for part in parts]}, "all parts")


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_any_range_of_rows_is_read_across_parts(split: list[int]) -> None:
    source = _joined(split)
    assert list(source.keys()) == ["ads"]
    assert source.shape("ads") == (10, 4)
    assert source.starts("ads") == [sum(split[:place]) for place in range(len(split))]
    for start in range(11):
        for stop in range(start, 11):
            rows = source.read("ads", start, stop)
            assert rows.dtype is torch.int64 and torch.equal(rows, WHOLE[start:stop])


def test_parts_that_do_not_fit_together_are_refused() -> None:
    first = TensorSource({"w": torch.zeros(3, 4)}, "the first")
    narrow = TensorSource({"w": torch.zeros(3, 2)}, "the second")
    with pytest.raises(SourceError, match=r"the second: 'w' is \[3, 2\], expected rows of \[4\]"):
        JoinedRows({"ads": [(first, "w"), (narrow, "w")]}, "both")
    half = TensorSource({"w": torch.zeros(3, 4, dtype=torch.float16)}, "the second")
    source = JoinedRows({"ads": [(first, "w"), (half, "w")]}, "both")
    with pytest.raises(
        SourceError, match="the second: 'w' is torch.float16, expected torch.float32"
    ):
        source.read("ads", 0, 6)
