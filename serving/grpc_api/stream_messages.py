"""Errors on a ModelStreamInfer call, in the form that Triton's clients expect.

Every request has one answer, so each answer is marked as final. An error carries the id of its
request beside the message.
"""

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from serving.protocol.message_size import INFER_LIMITS, check_size
from sharded_infer.errors import RequestTooLargeError


def _final() -> bytes:
    response = service_pb2.ModelInferResponse()
    response.parameters["triton_final_response"].bool_param = True
    return bytes(response.SerializeToString())


_FINAL = _final()


def stream_error(words: str, message: bytes) -> bytes:
    """Serializes a ModelStreamInferResponse with a non-empty error for a refused request."""
    response = service_pb2.ModelInferResponse()
    try:
        check_size(message, INFER_LIMITS)
        request = service_pb2.ModelInferRequest.FromString(message)
    except (DecodeError, RequestTooLargeError):
        pass  # a request that is not read has no id
    else:
        response.id = request.id
        response.model_name = request.model_name
        response.model_version = request.model_version
    response.MergeFromString(_FINAL)
    answer = service_pb2.ModelStreamInferResponse(error_message=words, infer_response=response)
    return bytes(answer.SerializeToString())
