from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from serving.abi.reader import MAX_OUTPUTS
from serving.protocol.request_header import RequestHeader, header_of, read_header
from sharded_infer.errors import RequestError
from tests.serving.protocol.mutations import mutations


def message(edit: Callable[[Any], object] = lambda request: None) -> Any:
    request = service_pb2.ModelInferRequest(model_name="m", model_version="3", id="17")
    request.inputs.add(name="a", datatype="INT64", shape=[1])
    request.raw_input_contents.append(b"12345678")
    edit(request)
    return request


def _set(name: str, **value: Any) -> Callable[[Any], object]:
    def edit(request: Any) -> None:
        for kind, content in value.items():
            setattr(request.parameters[name], kind, content)

    return edit


def _several(request: Any) -> None:
    _set("priority", uint64_param=4)(request)
    _set("timeout", int64_param=2500)(request)
    _set("routing_key", string_param="user-7")(request)
    _set("sequence_start", bool_param=True)(request)
    _set("note", string_param="hello")(request)
    _set("share", double_param=0.5)(request)
    request.outputs.add(name="score")
    request.outputs.add(name="labels")


HEADER = RequestHeader("m", "3", "17")
USUAL = {
    "nothing more": (message(), HEADER),
    "nothing at all": (service_pb2.ModelInferRequest(), RequestHeader("", "", "")),
    "all": (
        message(_several),
        RequestHeader("m", "3", "17", 4, 2500, ("score", "labels"), routing_key=b"user-7"),
    ),
    "a priority of int64": (
        message(_set("priority", int64_param=2**40)),
        HEADER._replace(priority=2**40),
    ),
    "an empty routing key": (message(_set("routing_key", string_param="")), HEADER),
    "a number as routing key": (
        message(_set("routing_key", int64_param=-2)),
        HEADER._replace(routing_key=b"\xfe" + 7 * b"\xff"),
    ),
    "unknown ids by table": (
        message(_set("unknown_ids", bool_param=True)),
        HEADER._replace(reports_unknown_ids=True),
    ),
    "no unknown ids by table": (message(_set("unknown_ids", bool_param=False)), HEADER),
    "a timeout of uint64": (
        message(_set("timeout", uint64_param=9)),
        HEADER._replace(timeout_us=9),
    ),
}


@pytest.mark.parametrize("case", USUAL)
def test_a_usual_header_is_read(case: str) -> None:
    request, wanted = USUAL[case]
    assert header_of(request) == wanted
    assert read_header(request.SerializeToString()) == wanted


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_set("priority", int64_param=-1), "parameter 'priority': .* got int64_param -1"),
        (_set("timeout", double_param=0.5), "parameter 'timeout': .* got double_param"),
        (lambda r: r.parameters["timeout"], "parameter 'timeout': .* got None"),
        (_set("unknown_ids", int64_param=1), "parameter 'unknown_ids': .* bool_param, got int64"),
        (_set("routing_key", bool_param=True), "parameter 'routing_key': .* got bool_param"),
        (_set("routing_key", uint64_param=2**63), "parameter 'routing_key': .* got uint64_param"),
        (_set("label", string_param="stable"), "both a version, '3', and a label, 'stable'"),
        (_set("label", int64_param=3), "parameter 'label': expected string_param .* got int64"),
        (
            lambda r: setattr(
                r.outputs.add(name="score").parameters["shared_memory_region"], "string_param", "x"
            ),
            "output 'score': parameter 'shared_memory_byte_size' is missing",
        ),
    ],
)
def test_a_header_that_cannot_be_is_refused(edit: Callable[[Any], object], words: str) -> None:
    request = message(edit)
    assert read_header(request.SerializeToString()) is None
    with pytest.raises(RequestError, match=words):
        header_of(request)


@pytest.mark.parametrize(
    "edit",
    [
        lambda r: setattr(r, "id", "é"),
        lambda r: setattr(r, "model_name", "modèle"),
        _set("priority", uint64_param=2**63),
        _set("routing_key", string_param="é"),
        _set("routing_key", uint64_param=3),
        lambda r: [r.outputs.add(name=f"o{i}") for i in range(MAX_OUTPUTS + 1)],
        lambda r: [r.inputs.add() for _ in range(2**17 + 1)],
        lambda r: r.raw_input_contents.extend([b""] * (2**17 + 1)),
    ],
)
def test_an_unusual_header_is_left_to_protobuf(edit: Callable[[Any], object]) -> None:
    request = message(edit)
    assert read_header(request.SerializeToString()) is None
    assert header_of(request).model_version == "3"


def test_a_label_stands_for_the_version_and_protobuf_reads_it() -> None:
    request = message(_set("label", string_param="stable"))
    request.model_version = ""
    assert header_of(request).model_version == "stable"
    assert read_header(request.SerializeToString()) is None


def test_a_field_that_comes_twice_is_left_to_protobuf() -> None:
    whole = message().SerializeToString()
    assert read_header(whole) is not None
    again = service_pb2.ModelInferRequest(model_name="n").SerializeToString()
    twice = message(_set("timeout", int64_param=1)).SerializeToString()
    second = service_pb2.ModelInferRequest()
    _set("timeout", int64_param=2)(second)
    assert read_header(whole + again) is None
    assert read_header(twice + second.SerializeToString()) is None


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32))
def test_changed_bytes_are_never_read_differently(seed: int) -> None:
    for data in mutations(message(_several).SerializeToString(), seed, 30):
        found = read_header(data)
        # Inputs are not looked into: the reader will say what is wrong there.
        with suppress(DecodeError):
            request = service_pb2.ModelInferRequest.FromString(data)
            assert found is None or found == header_of(request)


def test_positions_of_outputs_are_in_the_models_order() -> None:
    names = ("score", "labels")
    assert RequestHeader("m", "", "").output_positions(names) == (0, 1)
    both = RequestHeader("m", "", "", outputs=("labels", "score", "labels"))
    assert both.output_positions(names) == (0, 1)
    assert RequestHeader("m", "", "", outputs=("labels",)).output_positions(names) == (1,)
    with pytest.raises(RequestError, match="output 'x' is not one of the model's: score, labels"):
        RequestHeader("m", "", "", outputs=("x",)).output_positions(names)
