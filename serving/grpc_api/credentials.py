"""Credentials of gRPC servers, read from certificate files."""

import grpc

from serving.security.tls import TlsFiles, WatchedFiles


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials for a gRPC server; the next connection uses files that have changed.

    Raises:
        InputError: the files cannot be read, or do not match each other.
    """
    watched = WatchedFiles(files, lambda: _configuration(files))
    return grpc.dynamic_ssl_server_credentials(
        watched.current,
        watched.look,  # type: ignore[arg-type]
        require_client_authentication=files.client_ca is not None,
    )


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    # gRPC itself does not report files that do not match each other.
    files.server_context()
    certificate, key, *roots = files.read()
    return grpc.ssl_server_certificate_configuration(
        [(key, certificate)], root_certificates=roots[0] if roots else None
    )
