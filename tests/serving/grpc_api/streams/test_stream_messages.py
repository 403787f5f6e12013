import pytest
from tritonclient.grpc import service_pb2

from serving.grpc_api.streams.stream_messages import stream_error, stream_response


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 20_000, 3_000_000])
def test_an_answer_is_the_response_marked_as_the_last(size: int) -> None:
    response = service_pb2.ModelInferResponse(id="7", raw_output_contents=[bytes(size)])
    response.parameters["mine"].int64_param = 3
    data = stream_response(response.SerializeToString())
    found = service_pb2.ModelStreamInferResponse.FromString(data)
    response.parameters["triton_final_response"].bool_param = True
    assert found.infer_response == response and found.error_message == ""


def test_an_error_says_whose_it_is() -> None:
    request = service_pb2.ModelInferRequest(id="7", model_name="m", model_version="3")
    data = stream_error("no", request.SerializeToString())
    found = service_pb2.ModelStreamInferResponse.FromString(data)
    response = found.infer_response
    assert (found.error_message, response.id, response.model_name) == ("no", "7", "m")
    assert response.model_version == "3" and response.parameters["triton_final_response"].bool_param


def test_an_error_for_bytes_that_are_no_request_is_nobodys() -> None:
    found = service_pb2.ModelStreamInferResponse.FromString(stream_error("no", b"\xff\xff"))
    assert found.error_message == "no" and found.infer_response.id == ""
