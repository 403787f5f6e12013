"""TLS: certificates from files, read again when they change."""

import logging
import os
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc

from serving.config import ServerConfig
from sharded_infer.errors import InputError
from sharded_infer.regular_file import read_regular

# Of certificates of all authorities there are.
_MOST_BYTES = 16 * 2**20

_log = logging.getLogger("sharded_infer")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a server's certificates are.

    Attributes:
        certificate: PEM, the server's and those between it and its authority.
        key: PEM, the certificate's private key.
        client_ca: PEM, authorities of clients' certificates; None: clients need none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None

    def server_context(self) -> ssl.SSLContext:
        """A context for servers of Python's own, such as the HTTP pages.

        Raises:
            InputError: the files cannot be read, or do not fit together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Of whatever else the names mean, OpenSSL would wait for an end.
            self._read()
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            files = ", ".join(str(file) for file in self._files)
            raise InputError(f"TLS: {files} cannot be used: {error}") from error
        return context

    def watched_context(self) -> ssl.SSLContext:
        """As `server_context`; a certificate that changes is used by the next connection.

        Raises:
            InputError: the files cannot be read, or do not fit together.
        """
        context = self.server_context()
        watch = _Watch(self)

        def look(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            connection.context = watch.context()

        # OpenSSL asks at each connection which certificate it gets, whatever name it asks for.
        context.sni_callback = look
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Credentials for a gRPC server; files that change are used by the next connection.

        Raises:
            InputError: the files cannot be read, or do not fit together.
        """
        watch = _Watch(self)
        return grpc.dynamic_ssl_server_credentials(
            watch.first,
            watch.look,  # type: ignore[arg-type]
            require_client_authentication=self.client_ca is not None,
        )

    @property
    def signature(self) -> tuple[tuple[int, int, int], ...]:
        """Something that changes when a file does.

        Raises:
            OSError: one is not there.
        """
        stats = [os.stat(file) for file in self._files]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """What the files hold now.

        Raises:
            InputError: they cannot be read, or do not fit together.
        """
        self.server_context()
        certificate, key, *roots = self._read()
        return grpc.ssl_server_certificate_configuration(
            [(key, certificate)], root_certificates=roots[0] if roots else None
        )

    def _read(self) -> list[bytes]:
        """What the files hold, each in its turn."""
        return [read_regular(file, _MOST_BYTES, follow=True) for file in self._files]

    @property
    def _files(self) -> tuple[Path, ...]:
        files = (self.certificate, self.key)
        return files if self.client_ca is None else (*files, self.client_ca)


class _Watch:
    """Says, at each connection, whether the files hold something new."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        try:
            self._seen = files.signature
            self.first = files.configuration()
        except OSError as error:
            raise InputError(f"TLS: {error}") from error

    def context(self) -> ssl.SSLContext:
        """A context of what the files hold; of what they held, where that cannot be used."""
        if self.look() is not None or self._context is None:
            try:
                self._context = self._files.server_context()
            except InputError as error:
                if self._context is None:
                    raise
                _log.error("the certificates stay as they were: %s", error)
        return self._context

    def look(self) -> grpc.ServerCertificateConfiguration | None:
        """What is new; None: nothing, or nothing that can be used, which the log says."""
        with self._lock:
            try:
                found = self._files.signature
                if found == self._seen:
                    return None
                new = self._files.configuration()
            except (OSError, InputError) as error:
                # Files are replaced one after another: the next connection looks again.
                _log.error("the certificates stay as they were: %s", error)
                return None
            self._seen = found
            _log.info("certificates read again: %s", self._files.certificate)
            return new


def tls_files(config: ServerConfig) -> TlsFiles | None:
    """Where a server's certificates are; None: it speaks without TLS."""
    if config.tls_certificate is None or config.tls_key is None:
        return None
    client_ca = None if config.tls_client_ca is None else Path(config.tls_client_ca)
    return TlsFiles(Path(config.tls_certificate), Path(config.tls_key), client_ca)


def _no_password() -> str:
    # Without this OpenSSL asks the terminal.
    raise ValueError("the private key is encrypted, expected one without a password")
