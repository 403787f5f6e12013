"""JSON requests, with and without binary tensors, become the message that gRPC clients send."""

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.rest.infer_request import infer_message
from serving.rest.json_text import MOST_JSON_BYTES, read_object
from sharded_infer.errors import RequestError, RequestTooLargeError


def message_of(document: dict[str, Any], binary: bytes | None = None) -> Any:
    text = json.dumps(document).encode()
    length = None if binary is None else len(text)
    message, _ = infer_message("m", "3", text + (binary or b""), length)
    return service_pb2.ModelInferRequest.FromString(message)


def test_nested_and_flat_data_are_the_same_bytes() -> None:
    rows = [[[1, 2, 3], [4, 5, 6]]]
    tensor = {"name": "x", "datatype": "INT32", "shape": [1, 2, 3]}
    nested = message_of({"inputs": [{**tensor, "data": rows}]})
    flat = message_of({"inputs": [{**tensor, "data": [1, 2, 3, 4, 5, 6]}]})
    assert nested == flat
    assert nested.raw_input_contents[0] == np.array(rows, "<i4").tobytes()
    assert list(nested.inputs[0].shape) == [1, 2, 3]


def test_binary_tensors_are_cut_in_the_order_of_the_inputs() -> None:
    def tensor(name: str, size: int) -> dict[str, Any]:
        parameters = {"binary_data_size": size, "other": 1}
        return {"name": name, "datatype": "INT64", "shape": [1], "parameters": parameters}

    json_input = {"name": "b", "datatype": "FP32", "shape": [1], "data": [0.5]}
    large = bytes(range(256)) * 2
    request = message_of(
        {"inputs": [tensor("a", 512), json_input, tensor("c", 0), tensor("d", 3)]}, large + b"xyz"
    )
    half = np.array([0.5], "<f4").tobytes()
    assert list(request.raw_input_contents) == [large, half, b"", b"xyz"]
    assert set(request.inputs[0].parameters) == {"other"}


def test_parameters_keep_their_kinds() -> None:
    given = {"a": True, "b": 5, "c": 2**63, "d": 0.5, "e": "x", "f": -(2**63)}
    found = message_of({"parameters": given, "inputs": [], "id": "7"})
    assert (found.model_name, found.model_version, found.id) == ("m", "3", "7")
    kinds = {name: p.WhichOneof("parameter_choice") for name, p in found.parameters.items()}
    assert kinds == {
        "a": "bool_param", "b": "int64_param", "c": "uint64_param", "d": "double_param",
        "e": "string_param", "f": "int64_param",
    }  # fmt: skip


def test_an_output_is_binary_where_it_says_so_or_all_are() -> None:
    outputs = [{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}]
    document = {"inputs": [], "outputs": outputs, "parameters": {"binary_data_output": True}}
    message, forms = infer_message("m", "", json.dumps(document).encode(), None)
    assert [forms.is_binary(name) for name in "ab"] == [False, True]
    request = service_pb2.ModelInferRequest.FromString(message)
    assert [len(output.parameters) for output in request.outputs] == [0, 0]
    assert not request.parameters


def test_json_that_is_too_large_or_ambiguous_is_refused() -> None:
    with pytest.raises(RequestTooLargeError, match="binary"):
        read_object(b" " * (MOST_JSON_BYTES + 1))
    with pytest.raises(RequestError, match="'a' twice"):
        read_object(b'{"x": {"a": 1, "a": 2}}')
    assert read_object(b"") == {}
