"""A `Status` in gRPC's form: code, message and trailing metadata."""

import math
from typing import NoReturn

import grpc

from serving.status import Status, StatusCode
from sharded_infer.errors import InternalError

# Milliseconds after which a client may retry (gRPC proposal A6, client retries).
PUSHBACK = "grpc-retry-pushback-ms"
_CODES = {code: grpc.StatusCode[code.name] for code in StatusCode}


def grpc_code(code: StatusCode) -> grpc.StatusCode:
    """The code as an enum member of gRPC for Python."""
    return _CODES[code]


def trailing_metadata(status: Status) -> tuple[tuple[str, str], ...]:
    """The trailing metadata of an error: when to retry, if known."""
    if status.retry_seconds is None:
        return ()
    return ((PUSHBACK, str(math.ceil(status.retry_seconds * 1e3))),)


def abort(context: grpc.ServicerContext, status: Status) -> NoReturn:
    """Ends a call with an error, by gRPC for Python's exception that ends handlers."""
    metadata = trailing_metadata(status)
    if metadata:
        context.set_trailing_metadata(metadata)
    context.abort(grpc_code(status.code), status.message)
    raise InternalError("gRPC went on with a call that was ended")
