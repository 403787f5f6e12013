"""TLS certificates from files, reloaded when they change."""

import logging
import os
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from serving.config.server_config import ServerConfig
from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import read_regular

# More than certificates of all existing authorities.
_MOST_BYTES = 16 * 2**20

_log = logging.getLogger("sharded_infer")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a server's certificates.

    Attributes:
        certificate: the server's certificate and its intermediates.
        client_ca: authorities of clients' certificates; None: clients need none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None

    def server_context(self) -> ssl.SSLContext:
        """Context for Python's servers; InputError for unreadable or mismatched files."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # OpenSSL would block on files such as pipes.
            self.read()
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            files = ", ".join(str(file) for file in self._files)
            raise InputError(f"TLS: {files} cannot be used: {error}") from error
        return context

    @property
    def signature(self) -> tuple[tuple[int, int, int], ...]:
        """Changes with the files. Raises OSError if one does not exist."""
        stats = [os.stat(file) for file in self._files]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)

    def read(self) -> list[bytes]:
        """Contents of certificate, key and, if set, the clients' authorities.

        Raises OSError or InputError if a file cannot be read.
        """
        return [read_regular(file, _MOST_BYTES, follow=True) for file in self._files]

    @property
    def _files(self) -> tuple[Path, ...]:
        files = (self.certificate, self.key)
        return files if self.client_ca is None else (*files, self.client_ca)


class WatchedFiles(Generic[_Made]):
    """An object made from certificate files, remade when they change; `current` is valid."""

    def __init__(self, files: TlsFiles, make: Callable[[], _Made]) -> None:
        """Makes the first object; raises InputError for unreadable or mismatched files."""
        self._files = files
        self._make = make
        self._lock = threading.Lock()
        try:
            self._seen = files.signature
            self.current = make()
        except OSError as error:
            raise InputError(f"TLS: {error}") from error

    def look(self) -> _Made | None:
        """The new object; None if the files are unchanged, or invalid, which is logged."""
        with self._lock:
            try:
                found = self._files.signature
                if found == self._seen:
                    return None
                self.current = self._make()
            except (OSError, InputError) as error:
                # Files are replaced one after another: the next connection checks again.
                _log.error("the certificates stay as they were: %s", error)
                return None
            self._seen = found
            _log.info("certificates reloaded: %s", self._files.certificate)
            return self.current


def tls_files(config: ServerConfig) -> TlsFiles | None:
    """Files of a server's certificates; None without TLS."""
    if config.tls_certificate is None or config.tls_key is None:
        return None
    client_ca = None if config.tls_client_ca is None else Path(config.tls_client_ca)
    return TlsFiles(Path(config.tls_certificate), Path(config.tls_key), client_ca)


def _no_password() -> str:
    # Otherwise OpenSSL prompts on the terminal.
    raise ValueError("the private key is encrypted, expected one without a password")
