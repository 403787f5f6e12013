"""An S3 server on this machine: moto behind a proxy that counts, breaks and delays requests."""

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "models"
App = Callable[[dict[str, Any], Any], Iterable[bytes]]


@dataclass
class S3Server:
    """A running server.

    Attributes:
        requests: method, path and range of every request so far.
        refuse: True denies access to a method and a path.
        lose_answer: True executes a request but loses its answer; once.
        break_after: GETs of `files/` are cut off at this byte of their file.
    """

    url: str
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    refuse: Callable[[str, str], bool] | None = None
    lose_answer: Callable[[str, str], bool] | None = None
    break_after: int | None = None

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106 - moto takes any
            region_name="us-east-1",
        )

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def keys(self, prefix: str = "") -> list[str]:
        listed = self.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for entry in listed.get("Contents", [])]

    def content(self, key: str) -> bytes:
        body = self.client().get_object(Bucket=BUCKET, Key=key)["Body"]
        return bytes(body.read())

    def put(self, key: str, content: bytes) -> None:
        self.client().put_object(Bucket=BUCKET, Key=key, Body=content)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    logging.getLogger("werkzeug").disabled = True
    inner: App = DomainDispatcherApplication(create_backend_app)
    # Moto checks, then writes: one request at a time makes its conditions atomic, as S3's are.
    one_at_a_time = threading.Lock()
    server: S3Server

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        server.requests.append((method, path, environ.get("HTTP_RANGE", "")))
        if server.refuse is not None and server.refuse(method, path):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"]
        with one_at_a_time:
            parts = list(inner(environ, start_response))
        if server.lose_answer is not None and server.lose_answer(method, path):
            server.lose_answer = None
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("as was asked for")
        if method != "GET" or "/files/" not in path or server.break_after is None:
            return parts
        first = int(environ.get("HTTP_RANGE", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        return _cut(b"".join(parts), max(server.break_after - first, 0))

    listening = make_server("127.0.0.1", 0, app, threaded=True)
    server = S3Server(f"http://127.0.0.1:{listening.port}")
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        server.client().create_bucket(Bucket=BUCKET)
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def _cut(content: bytes, left: int) -> Iterator[bytes]:
    yield content[:left]
    if left < len(content):
        raise ConnectionAbortedError("as was asked for")
