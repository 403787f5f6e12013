from collections.abc import Sequence

import numpy as np
import pytest

from serving.protocol.wire_tensors import WireTensor, tensor_arrays
from sharded_infer.errors import RequestError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import RequestReader
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec

SPEC = ModelSpec(
    name="small",
    tables=(TableSpec("a", 10, 2), TableSpec("b", 20, 3)),
    dense=DenseSpec({"dense": 2}),
)
READER = RequestReader(SPEC)
DENSE = WireTensor("dense", "FP32", [2, 2], np.array([1, 2, 3, 4], "<f4").tobytes())


def read(tensors: Sequence[WireTensor]) -> ModelInput:
    return READER.read(tensor_arrays(tensors, READER))


def test_bytes_are_read_as_little_endian_numbers() -> None:
    ids = WireTensor("a", "INT64", [2], bytes([7, *[0] * 7, 2, 1, *[0] * 6]))
    model_input = read([ids, DENSE])
    (group,) = model_input.groups
    assert model_input.batch_size == 2 and group.features == (0, 1)
    assert group.values.tolist() == [7, 258] and group.values.dtype == np.int64
    assert group.lengths.tolist() == [[1, 1], [0, 0]]
    assert model_input.dense[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_typed_elements_are_read_as_bytes_are() -> None:
    dense = WireTensor("dense", "FP32", [2, 2], [1.0, 2.0, 3.0, 4.0])
    by_elements = READER.read(
        tensor_arrays([WireTensor("b", "INT32", [2, 1], [3, -5]), dense], READER)
    )
    raw = np.array([3, -5], "<i4").tobytes()
    by_bytes = read([WireTensor("b", "INT32", [2, 1], raw), DENSE])
    assert by_elements.groups[0].values.tolist() == by_bytes.groups[0].values.tolist() == [3, -5]
    assert np.array_equal(by_elements.dense[0], by_bytes.dense[0])


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (
            WireTensor("a", "UINT8", [1], b"\0"),
            "input 'a': datatype 'UINT8', expected INT64 or INT32",
        ),
        (
            WireTensor("dense", "FP64", [1, 2], bytes(16)),
            "'dense': datatype 'FP64', expected FP32$",
        ),
        (WireTensor("a.lengths", "FP64", [1], bytes(8)), "'FP64', expected INT32 or INT64$"),
        (WireTensor("no", "FP64", [1], bytes(8)), "^input 'no' is not one of the model's"),
        (WireTensor("dens", "BYTES", [1], [b"x"]), "'dens' is not one .* mean 'dense'"),
        (WireTensor("a", "INT64", [-1], b""), r"input 'a': shape \[-1\] has a negative size"),
        (WireTensor("a", "INT64", [2], bytes(15)), r"'a': INT64 \[2\] is 16 bytes, got 15"),
        (WireTensor("a", "INT32", [2**62, 4], b""), f"is {2**66} bytes, got 0"),
        (WireTensor("a", "INT32", [2], [1]), r"'a': INT32 \[2\] has 2 elements, got 1"),
        (WireTensor("a", "INT64", [2**62, 0, 2**62], b""), "sizes that are too large"),
        (WireTensor("a", "INT64", [1] * 65, bytes(8)), "too many dimensions"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(tensor: WireTensor, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read([tensor, DENSE])


def test_an_input_may_not_come_twice() -> None:
    with pytest.raises(RequestError, match="input 'dense' came twice"):
        read([DENSE, DENSE])


def test_no_tensors_are_no_request() -> None:
    with pytest.raises(RequestError, match="no inputs"):
        read([])
