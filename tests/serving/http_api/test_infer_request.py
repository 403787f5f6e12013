import json
from typing import Any

import numpy as np
import pytest

from serving.http_api.infer_request import InferDocument, read_document
from serving.http_api.json_reader import MOST_JSON_BYTES, read_object
from serving.protocol.request_tensors import parameter_kind
from sharded_infer.errors import RequestError, RequestTooLargeError


def read(document: dict[str, Any], binary: bytes | None = None) -> InferDocument:
    text = json.dumps(document).encode()
    length = None if binary is None else len(text)
    return read_document("m", "3", text + (binary or b""), length)


def test_nested_and_flat_data_are_the_same_bytes() -> None:
    rows = [[[1, 2, 3], [4, 5, 6]]]
    tensor = {"name": "x", "datatype": "INT32", "shape": [1, 2, 3]}
    nested = read({"inputs": [{**tensor, "data": rows}]})
    flat = read({"inputs": [{**tensor, "data": [1, 2, 3, 4, 5, 6]}]})
    assert nested.inputs == flat.inputs
    assert nested.inputs[0].data == np.array(rows, "<i4").tobytes()
    assert nested.inputs[0].shape == [1, 2, 3]


@pytest.mark.parametrize("datatype", ["INT64", "FP32", "BYTES"])
@pytest.mark.parametrize(
    ("shape", "data", "error"),
    [
        (
            [2, 2],
            [[0, 1, 2], [3]],
            r"data\[0\]: expected 2 elements as in the shape \[2, 2\], got 3",
        ),
        ([2, 2], [[0, 1], [3]], r"data\[1\]: expected 2 elements as in the shape \[2, 2\], got 1"),
        ([2, 2], [[0, 1, 2, 3]], r"data: expected 2 elements .*, got 1"),
        ([4], [[0, 1], [2, 3]], r"data: expected 4 elements .*, got 2"),
        ([2], [[0], [1]], r"data\[0\]: expected no list"),
        ([2, 1], [[0], 1], r"data\[1\]: expected a list"),
        ([1, 2, 1], [[[0], [1, 2]]], r"data\[0\]\[1\]: expected 1 element .*, got 2"),
        ([2, 2], [[[0], [1]], [2, 3]], r"data\[0\]\[0\]: expected no list"),
        ([1, 2**62], [[0, 1]], r"data\[0\]: expected .*, got 2"),
    ],
)
def test_nesting_that_contradicts_the_shape_is_refused_by_its_path(
    shape: list[int], data: list[Any], error: str, datatype: str
) -> None:
    def named(value: Any) -> Any:
        return [named(part) for part in value] if isinstance(value, list) else str(value)

    elements = named(data) if datatype == "BYTES" else data
    tensor = {"name": "f", "shape": shape, "datatype": datatype, "data": elements}
    with pytest.raises(RequestError, match=f"input 'f': {error}"):
        read({"inputs": [tensor]})


def test_an_id_of_null_is_no_id_and_a_parameter_of_null_is_refused() -> None:
    assert read({"id": None}).header().request_id == ""
    with pytest.raises(
        RequestError, match="'priority': expected a string, a number or a boolean, got null"
    ):
        read({"parameters": {"priority": None}})
    for field in ("inputs", "outputs"):
        with pytest.raises(RequestError, match=rf"^{field}\[1\]: expected an object, got null"):
            read({field: [{"name": "a", "shape": [0], "datatype": "FP32", "data": []}, None]})


def test_binary_tensors_are_cut_in_the_order_of_the_inputs() -> None:
    def tensor(name: str, size: int) -> dict[str, Any]:
        parameters = {"binary_data_size": size, "other": 1}
        return {"name": name, "datatype": "INT64", "shape": [1], "parameters": parameters}

    json_input = {"name": "b", "datatype": "FP32", "shape": [1], "data": [0.5]}
    large = bytes(range(256)) * 2
    request = read(
        {"inputs": [tensor("a", 512), json_input, tensor("c", 0), tensor("d", 3)]}, large + b"xyz"
    )
    half = np.array([0.5], "<f4").tobytes()
    assert [tensor.data for tensor in request.inputs] == [large, half, b"", b"xyz"]
    assert request.input_parameters == {position: {"other": 1} for position in (0, 2, 3)}


def test_parameters_keep_their_kinds() -> None:
    given = {"a": True, "b": 5, "c": 2**63, "d": 0.5, "e": "x", "f": -(2**63)}
    found = read({"parameters": given, "inputs": [], "id": "7"})
    assert (found.model, found.version, found.request_id) == ("m", "3", "7")
    assert found.parameters == given
    kinds = {name: parameter_kind(value) for name, value in found.parameters.items()}
    assert kinds == {
        "a": "bool_param", "b": "int64_param", "c": "uint64_param", "d": "double_param",
        "e": "string_param", "f": "int64_param",
    }  # fmt: skip


def test_an_output_is_binary_where_it_says_so_or_all_are() -> None:
    outputs = [{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}]
    document = {"inputs": [], "outputs": outputs, "parameters": {"binary_data_output": True}}
    request = read(document)
    assert [request.is_binary(name) for name in "ab"] == [False, True]
    assert request.outputs == [("a", {}), ("b", {})]
    assert not request.parameters


def test_json_that_is_too_large_or_ambiguous_is_refused() -> None:
    with pytest.raises(RequestTooLargeError, match="binary"):
        read_object(b" " * (MOST_JSON_BYTES + 1))
    with pytest.raises(RequestError, match="'a' twice"):
        read_object(b'{"x": {"a": 1, "a": 2}}')
    assert read_object(b"") == {}
