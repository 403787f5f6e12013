"""Credentials of a command for a server: TLS, a client certificate, a token."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from sharded_infer.client import CallSettings
from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import read_regular

# Of a token, or of the certificates of all known authorities.
_MOST_BYTES = 16 * 2**20

TOKEN_VARIABLE = "SHARDED_INFER_TOKEN"  # noqa: S105 - a variable's name


@dataclass(frozen=True, slots=True)
class CallerFiles:
    """PEM files of a command's credentials, and a file with only a bearer token.

    `tls` is implied by `ca` and `certificate`. Without `ca` the authorities are public ones. The
    certificate's file has its intermediates too.
    """

    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token: Path | None = None

    @property
    def with_tls(self) -> bool:
        """True if the command uses TLS."""
        return self.tls or self.ca is not None or self.certificate is not None


@dataclass(frozen=True, slots=True)
class Caller:
    """Credentials that a command sends to a server, with settings for gRPC clients."""

    files: CallerFiles
    call: CallSettings

    @property
    def has_token(self) -> bool:
        """True if there is a token."""
        return self.call.token is not None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every call."""
        return dict(self.call.metadata)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Credentials for TLS over gRPC; None without TLS."""
        return self.call.credentials()

    def tls_context(self) -> ssl.SSLContext | None:
        """Context for TLS of Python's sockets, None without TLS; InputError for unusable files."""
        return _tls_context(self.files) if self.files.with_tls else None


def read_caller(files: CallerFiles, environment: Mapping[str, str]) -> Caller:
    """Read and check a command's credentials; without a file the token is SHARDED_INFER_TOKEN.

    Raises InputError if a file cannot be read, has the wrong content, or lacks its counterpart.
    """
    if (files.certificate is None) is not (files.key is None):
        raise InputError("--tls-certificate and --tls-key: expected both or neither, got one")
    roots = certificate = key = None
    if files.with_tls:
        _tls_context(files)
        # Empty: public authorities.
        roots = b"" if files.ca is None else _read("--tls-ca", files.ca)
    if files.certificate is not None and files.key is not None:
        certificate = _read("--tls-certificate", files.certificate)
        key = _read("--tls-key", files.key)
    token = _token(files.token, environment)
    call = CallSettings(
        root_certificates=roots, certificate=certificate, private_key=key, token=token
    )
    return Caller(files, call)


def _tls_context(files: CallerFiles) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if files.ca is not None:
        # Only our authorities: a public one must not vouch for a certificate.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _read("--tls-ca", files.ca)
        try:
            context.load_verify_locations(files.ca)
        except ssl.SSLError as error:
            words = f"--tls-ca {files.ca}: expected certificates as PEM: {error}"
            raise InputError(words) from error
    if files.certificate is not None and files.key is not None:
        _read("--tls-certificate", files.certificate)
        _read("--tls-key", files.key)
        try:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise InputError(
                f"--tls-certificate {files.certificate} and --tls-key {files.key}: expected a "
                f"certificate and its key as PEM: {error}"
            ) from error
    return context


def _token(file: Path | None, environment: Mapping[str, str]) -> str | None:
    if file is None:
        source, text = TOKEN_VARIABLE, environment.get(TOKEN_VARIABLE, "")
        if not text:
            return None
    else:
        source, text = f"--token-file {file}", _read("--token-file", file).decode(errors="replace")
    token = text.strip()
    # Headers hold visible ASCII. The message does not show the token, which is a secret.
    if not token or not all("!" <= letter <= "~" for letter in token):
        raise InputError(f"{source}: expected one token of visible ASCII and nothing else")
    return token


def _read(option: str, file: Path) -> bytes:
    try:
        return read_regular(file, _MOST_BYTES, follow=True)
    except OSError as error:
        raise InputError(f"{option} {file}: cannot be read: {error.strerror}") from error


def _no_password() -> str:
    # Without this OpenSSL asks the terminal.
    raise ValueError("the private key is encrypted, expected one without a password")


ANONYMOUS = Caller(CallerFiles(), CallSettings())
