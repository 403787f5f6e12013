"""A server's certificates in files, for tests over TLS."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trustme

_NAMES = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class IssuedFiles:
    """Files issued to a server on this machine, with the authority's own certificate (`ca`)."""

    authority: trustme.CA
    ca: Path
    certificate: Path
    key: Path

    def renew(self, authority: trustme.CA, names: Sequence[str] = _NAMES) -> None:
        """Issue a key and a certificate for this machine's names."""
        issued = authority.issue_cert(*names)
        issued.private_key_pem.write_to_path(str(self.key))
        self.certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))

    def options(self) -> tuple[object, ...]:
        return ("--tls-certificate", self.certificate, "--tls-key", self.key)

    def context(self, *protocols: str) -> ssl.SSLContext:
        """A client's context that trusts the authority and offers protocols by ALPN."""
        context = ssl.create_default_context(cafile=self.ca)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context


def issue_files(folder: Path, names: Sequence[str] = _NAMES) -> IssuedFiles:
    authority = trustme.CA()
    files = IssuedFiles(authority, *(folder / f"{name}.pem" for name in ("ca", "cert", "key")))
    authority.cert_pem.write_to_path(str(files.ca))
    files.renew(authority, names)
    return files
