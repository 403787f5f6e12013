import socket

import pytest

from sharded_infer.errors import StorageError
from sharded_infer.repositories.storage.object_store import ObjectStore
from tests.support.scripted_server import scripted_server

_HEAD = b'HTTP/1.1 206 Partial Content\r\nETag: "x"\r\nTransfer-Encoding: chunked\r\n\r\n'
_CHUNK = b"10000\r\n" + bytes(2**16) + b"\r\n"


def test_a_range_that_never_ends_is_read_to_its_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    def answer(connection: socket.socket, _number: int) -> None:
        nonlocal sent
        connection.recv(2**16)
        connection.sendall(_HEAD)
        while sent < 2**30:
            connection.sendall(_CHUNK)
            sent += len(_CHUNK)

    with scripted_server(answer) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.address}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
            monkeypatch.setenv(name, "test")
        store = ObjectStore("s3://bucket/models")
        with pytest.raises(StorageError, match=r"expected 1000 bytes from byte 5, got more"):
            store.read_range("large", 5, 1005)
    # What the kernel and the client buffer.
    assert sent < 2**25
