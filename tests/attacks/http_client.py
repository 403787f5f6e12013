"""HTTP as JSON and as bytes."""

import http.client
import json
import socket
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from tests.support.servers import MODEL, RunningServer

INFER = f"/v2/models/{MODEL}/infer"


def connect(server: RunningServer, seconds: float = 20.0) -> socket.socket:
    parts = urlsplit(server.metrics_url)
    return socket.create_connection((str(parts.hostname), int(parts.port or 0)), seconds)


def exchange(server: RunningServer, raw: bytes) -> bytes:
    came = b""
    with connect(server) as client:
        client.sendall(raw)
        try:
            while part := client.recv(65536):
                came += part
        except ConnectionResetError:
            pass
    return came


def post(
    server: RunningServer, body: bytes, headers: dict[str, str] | None = None, path: str = INFER
) -> tuple[int, Any]:
    parts = urlsplit(server.metrics_url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=60)) as client:
        client.request("POST", path, body, headers or {})
        response = client.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
