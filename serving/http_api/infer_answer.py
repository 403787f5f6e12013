"""HTTP answers with scores."""

from serving.http_api.compression import chosen_encoding, deflate
from serving.http_api.exchange import BINARY, JSON, HttpAnswer
from serving.protocol.infer_answer import Answer

HEADER_LENGTH = "Inference-Header-Content-Length"


def infer_answer(answer: Answer, accept_encoding: str = "") -> HttpAnswer:
    """Answer to a predict request, compressed as Accept-Encoding allows."""
    body, json_bytes = answer
    headers: tuple[tuple[str, str], ...] = ()
    if json_bytes:
        headers = ((HEADER_LENGTH, str(json_bytes)),)
    headers = (*headers, ("Vary", "Accept-Encoding"))
    encoding = chosen_encoding(accept_encoding)
    smaller = deflate(body, encoding)
    if smaller is not None:
        body, headers = smaller, (*headers, ("Content-Encoding", encoding))
    return HttpAnswer(200, body, BINARY if json_bytes else JSON, headers)
