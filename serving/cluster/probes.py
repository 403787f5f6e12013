"""Health probes of shard hosts and fronts of this machine."""

import ssl
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serving.cluster.managed_process import Health
from serving.remote_lookups.hosts_file import HostSettings, read_settings
from serving.status import StatusCode
from serving.transport.client_settings import ClientLimits, Endpoint
from serving.transport.http2_client import Http2Client, OutgoingCall
from sharded_infer.errors import ShardedInferError
from sharded_infer.v1 import shard_host_pb2

_SECONDS = 5.0
_ANSWER_BYTES = 2**20
_DESCRIBE = shard_host_pb2.DESCRIPTOR.services_by_name["ShardHost"].methods_by_name["Describe"]
_PATH = f"/{_DESCRIBE.containing_service.full_name}/{_DESCRIBE.name}"
_NO_ANSWER = (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED)


def shard_host_probe(file: Path) -> Callable[[dict[str, Any]], Health]:
    """Make a probe for versions, by TLS and tokens of the hosts file, but not its addresses."""
    question = shard_host_pb2.DescribeRequest().SerializeToString()
    made: tuple[str, HostSettings] | None = None
    client: Http2Client | None = None

    def ask(ready: dict[str, Any]) -> Health:
        nonlocal made, client
        address = str(ready["grpc_url"])
        try:
            settings = read_settings(file)
            if client is None or made != (address, settings):
                if client is not None:
                    client.close()
                client = Http2Client(
                    [Endpoint(address, f"shard host at {address}")],
                    [_PATH],
                    ClientLimits(answer_bytes=_ANSWER_BYTES),
                    tls=settings.tls,
                    token=settings.token,
                )
                made = address, settings
        except ShardedInferError as error:
            return Health(False, problem=str(error))
        client.start([OutgoingCall(0, question, _SECONDS)])
        (answer,) = client.finish()
        if (status := answer.status) is not None:
            return Health(False, answers=status.code not in _NO_ANSWER, problem=status.message)
        held = shard_host_pb2.DescribeResponse.FromString(bytes(answer.message)).versions
        versions = tuple(sorted(f"{one.model}@{one.version}" for one in held))
        return Health(bool(versions), versions, problem="" if versions else "holds no version")

    return ask


def front_probe(ready: dict[str, Any]) -> Health:
    """Probe a front's readiness; its versions are those that it began with."""
    url = urlsplit(str(ready["metrics_url"]))
    versions = tuple(sorted(f"{one['name']}@{one['version']}" for one in ready["models"]))
    context = ssl.create_default_context()
    # The process is on this machine.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection: HTTPConnection
    if url.scheme == "https":
        connection = HTTPSConnection(url.netloc, timeout=_SECONDS, context=context)
    else:
        connection = HTTPConnection(url.netloc, timeout=_SECONDS)
    try:
        connection.request("GET", "/ready")
        is_ready = connection.getresponse().status == HTTPStatus.OK
    except ssl.SSLError:
        # With mTLS it wants a certificate: it answers, but does not report more.
        return Health(is_healthy=True, versions=versions)
    except (OSError, HTTPException):
        return Health(is_healthy=False, answers=False, problem="it does not answer")
    finally:
        connection.close()
    return Health(is_ready, versions, problem="" if is_ready else "/ready says that it is not")
