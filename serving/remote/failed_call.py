"""Explanations of failed calls to a server, with a remedy."""

import socket
import ssl

from tritonclient.utils import InferenceServerException

from serving.remote.caller import TOKEN_VARIABLE, Caller

_TIMEOUT_SECONDS = 5.0
_TOKENS = f"--token-file, or the variable {TOKEN_VARIABLE}"


def failed_call(address: str, caller: Caller, error: InferenceServerException) -> str:
    """Text of the error and its probable cause."""
    code, words = str(error.status()).removeprefix("StatusCode."), error.message()
    match code:
        case "UNAUTHENTICATED" if not caller.has_token:
            return f"{address}: asks for a token ({_TOKENS}): {code}: {words}"
        case "UNAUTHENTICATED":
            return f"{address}: refuses the token: {code}: {words}"
        case "UNAVAILABLE":
            reason = _tls_failure(address, caller) or f"{code}: {words}"
            return f"{address}: does not answer: {reason}"
    return f"{address}: {code}: {words}"


def _tls_failure(address: str, caller: Caller) -> str | None:
    host, _, port = address.rpartition(":")
    context = caller.tls_context()
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_SECONDS) as plain,
            _for_grpc(context).wrap_socket(plain, server_hostname=host.strip("[]")) as tls,
        ):
            if context is None:
                return "it speaks TLS: --tls, or --tls-ca with the authority of its certificate"
            return None if _goes_on(tls) else _of_own_certificate(caller)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is refused: {error.verify_message}"
    except ssl.SSLError as error:
        return None if context is None else f"no TLS with it: {error.reason or error}"
    except (OSError, ValueError, OverflowError):
        # Not an address, or not a port: gRPC's own message is shown.
        return None


def _goes_on(tls: ssl.SSLSocket) -> bool:
    """True if a server goes on after the handshake; TLS 1.3 checks client certificates late."""
    try:
        return bool(tls.recv(1))
    except (ssl.SSLError, ConnectionError):
        return False


def _of_own_certificate(caller: Caller) -> str:
    if caller.files.certificate is None:
        return "it ends the TLS connection: it may want --tls-certificate and --tls-key"
    return (
        f"it ends the TLS connection: --tls-certificate {caller.files.certificate} may not be of "
        "an authority that it trusts"
    )


def _for_grpc(context: ssl.SSLContext | None) -> ssl.SSLContext:
    if context is None:
        # Only to find out if the server uses TLS: nothing is sent.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context
