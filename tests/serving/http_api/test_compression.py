import gzip
import zlib

import pytest

from serving.http_api.compression import chosen_encoding, deflate, inflate
from sharded_infer.errors import RequestTooLargeError


def test_what_is_deflated_inflates_to_the_same() -> None:
    body = b"scores " * 1000
    for encoding in ("gzip", "deflate"):
        smaller = deflate(body, encoding)
        assert smaller is not None and len(smaller) < len(body)
        assert inflate(smaller, encoding, len(body)) == body
    assert inflate(gzip.compress(body), " GZIP ", len(body)) == body
    assert deflate(b"short", "gzip") is None and deflate(body, "") is None
    assert inflate(body, "identity", 10) == body


def test_a_body_that_grows_past_its_limit_is_refused() -> None:
    with pytest.raises(RequestTooLargeError, match="more than 999 bytes"):
        inflate(zlib.compress(bytes(1000)), "deflate", 999)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("", ""),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br, deflate;q=0.5, GZIP;q=0.1", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip; q=0.0", ""),
        ("identity, br", ""),
    ],
)
def test_an_encoding_is_chosen_from_what_the_client_takes(accepted: str, chosen: str) -> None:
    assert chosen_encoding(accepted) == chosen
