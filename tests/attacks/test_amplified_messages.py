"""Messages of kilobytes that stand for millions of objects: refused before any is made."""

import gzip
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import pytest

from serving.grpc_api.handlers import INFER_METHOD, PREDICT_METHOD
from serving.protocol.lookups.lookup_messages import read_describe, read_described, read_lookup
from serving.protocol.lookups.sum_messages import read_sums
from serving.protocol.lookups.unknown_messages import read_refusal
from serving.protocol.message_size import INFER_LIMITS, PREDICT_LIMITS, check_size
from serving.protocol.wire_tensors import WireTensor, tensor_arrays
from sharded_infer.errors import InternalError, RequestTooLargeError
from sharded_infer.inputs.request_reader import RequestReader
from sharded_infer.v1.wire import bytes_field, message_field, text_field
from tests.attacks.attacker import Served, beside_an_honest_client
from tests.support.servers import MODEL
from tests.support.string_requests import SPEC

MANY = 4 * 2**20


def tensor(*fields: bytes) -> bytes:
    return text_field(1, MODEL) + message_field(
        5, text_field(1, "user") + text_field(2, "INT64") + b"".join(fields)
    )


CALLS = {
    "numbers": (INFER_METHOD, tensor(message_field(5, bytes_field(3, bytes(MANY))))),
    "sizes of a shape": (INFER_METHOD, tensor(bytes_field(3, b"\1" * MANY))),
    "numbers one by one": (INFER_METHOD, tensor(message_field(5, b"\x18\0" * MANY))),
    "empty strings": (INFER_METHOD, tensor(message_field(5, b"\x42\0" * MANY))),
    "parameters": (INFER_METHOD, tensor(b"\x22\0" * MANY)),
    "empty inputs": (INFER_METHOD, text_field(1, MODEL) + b"\x2a\0" * MANY),
    "features": (PREDICT_METHOD, text_field(1, MODEL) + message_field(7, b"\x0a\0" * MANY)),
}


@pytest.mark.parametrize("case", CALLS)
def test_too_many_parts_are_refused_and_memory_comes_back(case: str, served: Served) -> None:
    path, message = CALLS[case]
    with (
        beside_an_honest_client(served),
        grpc.insecure_channel(served.target.address, compression=grpc.Compression.Gzip) as channel,
        ThreadPoolExecutor(4) as attackers,
    ):
        attack = channel.unary_unary(path)
        attacks = [attackers.submit(attack, message, timeout=60.0) for _ in range(12)]
    for call in attacks:
        error = call.exception()
        assert isinstance(error, grpc.RpcError)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, error.details()


DOCUMENTS = {
    "lists": b'{"inputs":[' + b"[]," * (5 * 2**20) + b"[]]}",
    "objects": b'{"inputs":[' + b"{}," * (5 * 2**20) + b"{}]}",
    "numbers": b'{"inputs":[' + b"0," * (7 * 2**20) + b"0]}",
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_too_much_json_is_refused_and_probes_are_answered(case: str, served: Served) -> None:
    body = gzip.compress(DOCUMENTS[case])

    def ask(method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        headers = {"Content-Encoding": "gzip"} if body else {}
        with closing(http.client.HTTPConnection(served.http_address, timeout=60.0)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    with beside_an_honest_client(served), ThreadPoolExecutor(4) as attackers:
        path = f"/v2/models/{MODEL}/infer"
        attacks = [attackers.submit(ask, "POST", path, body) for _ in range(12)]
        while not all(attack.done() for attack in attacks):
            assert ask("GET", "/v2/health/live")[0] == 200
    for attack in attacks:
        status, answer = attack.result()
        assert status == 429 and "send tensors in binary" in json.loads(answer)["error"]


def test_strings_are_counted_by_their_shape_before_any_is_read() -> None:
    reader = RequestReader(SPEC, max_ids=1000)
    tensor = WireTensor("word", "BYTES", [MANY], bytes(4 * MANY))
    with pytest.raises(RequestTooLargeError, match="ids: expected at most 1000, got 4194304"):
        tensor_arrays([tensor], reader)


def test_a_lookup_of_too_many_parts_is_refused() -> None:
    for read, message in (
        (read_lookup, b"\x22\x02\x10\x00" * 2**20),
        (read_lookup, message_field(4, bytes_field(1, bytes(4 * 2**25 + 4)))),
        (read_describe, b"\x12\0" * 2**20),
    ):
        with pytest.raises(RequestTooLargeError, match="the message: expected at most"):
            read(message)


def test_an_answer_of_too_many_parts_is_refused() -> None:
    with pytest.raises(InternalError, match="expected at most 32768 fields"):
        read_described(memoryview(b"\x0a\0" * 2**20))
    with pytest.raises(InternalError, match="expected at most 131072 fields"):
        read_refusal(memoryview(b"\x10\0" * 2**20), [])
    with pytest.raises(InternalError, match="sums of"):
        read_sums(memoryview(b"\x0a\0" * 2**20), [1, 1])


def test_as_many_parts_as_are_allowed_pass() -> None:
    check_size(tensor(message_field(5, bytes_field(3, bytes(INFER_LIMITS.numbers)))), INFER_LIMITS)
    check_size(b"\x2a\0" * INFER_LIMITS.fields, INFER_LIMITS)
    ids = bytes_field(2, bytes(4 * PREDICT_LIMITS.numbers))
    check_size(message_field(6, message_field(1, text_field(1, "user") + ids)), PREDICT_LIMITS)
