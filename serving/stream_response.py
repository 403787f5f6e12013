"""Answers on a ModelStreamInfer call, in the form that Triton's clients read.

Every request has one answer, so each is marked as its request's last. An error says which request
it belongs to: its id is beside the words.
"""

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

# `infer_response`; the wire type of what has a length.
_RESPONSE = 2
_BYTES = 2


def _final() -> bytes:
    response = service_pb2.ModelInferResponse()
    response.parameters["triton_final_response"].bool_param = True
    return bytes(response.SerializeToString())


_FINAL = _final()


def stream_response(response: bytes) -> bytes:
    """A serialized ModelStreamInferResponse with an answer.

    Args:
        response: a serialized ModelInferResponse.
    """
    # Fields of a message that come later are merged with what is there: nothing is parsed.
    return _field(_RESPONSE, response + _FINAL)


def stream_error(words: str, message: bytes) -> bytes:
    """A serialized ModelStreamInferResponse with an error.

    Args:
        words: for people; not empty.
        message: the serialized ModelInferRequest that is refused.
    """
    response = service_pb2.ModelInferResponse()
    try:
        request = service_pb2.ModelInferRequest.FromString(message)
    except DecodeError:
        pass  # nobody can say whose it is
    else:
        response.id = request.id
        response.model_name = request.model_name
        response.model_version = request.model_version
    response.MergeFromString(_FINAL)
    answer = service_pb2.ModelStreamInferResponse(error_message=words, infer_response=response)
    return bytes(answer.SerializeToString())


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | _BYTES,)) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
