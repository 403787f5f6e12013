"""HTTP as JSON, as bytes, and a good predict call."""

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from tests.support.servers import DATATYPES, MODEL, RunningServer

INFER = f"/v2/models/{MODEL}/infer"


def connect(server: RunningServer, seconds: float = 20.0) -> socket.socket:
    """A connection to the HTTP port."""
    parts = urlsplit(server.metrics_url)
    return socket.create_connection((str(parts.hostname), int(parts.port or 0)), seconds)


def exchange(server: RunningServer, raw: bytes) -> bytes:
    """Everything that comes for bytes that are sent as they are."""
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
    """Status and the answer's JSON."""
    parts = urlsplit(server.metrics_url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=60)) as client:
        client.request("POST", path, body, headers or {})
        response = client.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None


def document(inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, Any]:
    """A predict request in JSON."""
    return {
        "inputs": [
            {
                "name": name,
                "datatype": DATATYPES[array.dtype.name],
                "shape": list(array.shape),
                "data": array.ravel().tolist(),
            }
            for name, array in inputs.items()
        ]
    }
