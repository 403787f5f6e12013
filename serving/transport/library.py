"""Libraries that the compiled transport opens: libnghttp2, and OpenSSL where it is installed."""

import ctypes

from serving.abi import transport as abi
from sharded_infer.errors import InputError

_ERROR_BYTES = 512


def transport_refusal() -> str | None:
    """Why the compiled transport cannot serve here; None if it can."""
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if abi.transport_http2_version(error, _ERROR_BYTES):
        return None
    return f"{error.value.decode()}: apt install libnghttp2-14, or your system's package"


def check_libraries() -> None:
    """Raises InputError if a library is missing that every transport needs."""
    refusal = transport_refusal()
    if refusal is not None:
        raise InputError(refusal)


def http2_text() -> str:
    """Version and vendor of libnghttp2, which must exist."""
    number = abi.transport_http2_version(None, 0)
    version = ".".join(str(number >> shift & 0xFF) for shift in (16, 8, 0))
    return f"libnghttp2 {version}, {_whose(abi.transport_http2_is_linked())}"


def tls_text() -> str | None:
    """Version and vendor of OpenSSL; None where it is missing."""
    text = ctypes.create_string_buffer(_ERROR_BYTES)
    if not abi.transport_tls_version(text, _ERROR_BYTES):
        return None
    return f"{text.value.decode()}, {_whose(abi.transport_tls_is_linked())}"


def _whose(is_linked: bool) -> str:
    return "built in" if is_linked else "of the system"
