from tritonclient.grpc import service_pb2

from serving.grpc_api.stream_messages import stream_error


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
