"""A server that wants certificates of its clients."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from tests.attacks.attacker import Served, Target
from tests.attacks.conftest import INFER
from tests.attacks.honest_client import call, grpc_channel
from tests.support.servers import Ranker, good_inputs, infer_request, running_server
from tests.support.tls import IssuedFiles, issue_files

# Handshakes end soon.
SHORT_TIMES = """
import serving.grpc_api.compiled.settings as settings
settings._HANDSHAKE_SECONDS = 2.0
import serving.cli
serving.cli.main()
"""


class TlsServer:
    """A server that wants certificates of its clients, and what its clients have.

    Attributes:
        served: by the credentials of an honest client.
    """

    def __init__(self, folder: Path, address: str, pid: int, files: IssuedFiles) -> None:
        self.files = files
        client = files.authority.issue_cert("honest")
        self._pair = folder / "client.pem"
        client.private_key_and_cert_chain_pem.write_to_path(str(self._pair))
        credentials = grpc.ssl_channel_credentials(
            files.ca.read_bytes(),
            client.private_key_pem.bytes(),
            client.cert_chain_pems[0].bytes(),
        )
        message = infer_request(good_inputs(3)).SerializeToString()
        target = Target(address, INFER, message, credentials)
        with grpc_channel(target) as channel:
            self.served = Served(target, call(channel, target), pid)

    def context(self) -> ssl.SSLContext:
        """A client's context with the certificate that the server wants."""
        context = self.files.context("h2")
        context.load_cert_chain(self._pair)
        return context


@contextmanager
def serving(ranker: Ranker, folder: Path) -> Iterator[TlsServer]:
    files, log = issue_files(folder), folder / "log"
    options = (*files.options(), "--tls-client-ca", files.ca)
    with running_server(ranker.repository, log, *options, program=SHORT_TIMES) as server:
        yield TlsServer(folder, server.grpc_url, server.process.pid, files)
    text = log.read_text()
    assert "internal error" not in text and "Traceback" not in text, text
