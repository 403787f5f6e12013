"""Each status code's number, and back."""

import grpc

from serving.http_status import http_status


def test_codes_that_clients_tell_apart_have_numbers_of_their_own() -> None:
    other = {grpc.StatusCode[name] for name in (
        "UNKNOWN", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "DATA_LOSS",
    )}  # fmt: skip
    numbers = [http_status(code) for code in grpc.StatusCode if code not in other]
    assert len(set(numbers)) == len(numbers)
    assert {http_status(code) for code in other} == {500}
    assert http_status(grpc.StatusCode.RESOURCE_EXHAUSTED) == 429
