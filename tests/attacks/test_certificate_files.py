"""Files of certificates that are renewed, or broken, while clients call."""

import os
import socket
import ssl
from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from pathlib import Path

import trustme

from tests.attacks.attacker import Target
from tests.attacks.grpc_attacks import OPENING
from tests.attacks.honest_client import HonestClient
from tests.attacks.raw_http2 import END_HEADERS, HEADERS, block, frame, frames
from tests.attacks.tls_server import TlsServer, serving
from tests.support.servers import Ranker
from tests.support.waiting import until

CALLS = 30


def certificate_of(target: Target, context: ssl.SSLContext) -> bytes:
    host, _, port = target.address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 60) as plain,
        context.wrap_socket(plain, server_hostname=host) as client,
    ):
        found = client.getpeercert(binary_form=True)
        assert found is not None
        return found


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


BREAKS: dict[str, Callable[[Path], None]] = {
    "empty": lambda file: file.write_bytes(b""),
    "no PEM": lambda file: file.write_bytes(os.urandom(1000)),
    "half": lambda file: file.write_bytes(file.read_bytes()[:100]),
    "another's": lambda file: trustme.CA().issue_cert("x").private_key_pem.write_to_path(str(file)),
    "missing": Path.unlink,
    "a FIFO": _fifo,
    "a folder": _folder,
}


def test_certificates_are_renewed_and_broken_files_change_nothing(
    ranker: Ranker, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with serving(ranker, tmp_path) as served:
        context, files, target = served.context(), served.files, served.served.target
        honest_client = HonestClient(target, served.served.answer)
        with honest_client as honest, closing(opened(served)) as held:
            before = certificate_of(target, context)
            for wrong, file in zip(
                BREAKS.values(), cycle((files.key, files.certificate)), strict=False
            ):
                kept, said = file.read_bytes(), log.read_text().count("stay as they were")
                wrong(file)
                assert certificate_of(target, context) == before
                until(
                    lambda: log.read_text().count("stay as they were") > said,  # noqa: B023
                    "the log says so",
                )
                honest.answered(2)
                if file.is_dir():
                    file.rmdir()
                file.unlink(missing_ok=True)
                file.write_bytes(kept)
                assert certificate_of(target, context) == before
            issued = files.authority.issue_cert("127.0.0.1", "localhost")
            files.key.write_bytes(issued.private_key_pem.bytes())
            files.certificate.write_bytes(issued.cert_chain_pems[0].bytes())
            assert certificate_of(target, context) != before
            honest.answered(CALLS)
            # A connection of before goes on.
            held.sendall(frame(HEADERS, END_HEADERS, 1, block(b"/no.Such/Method")))
            assert any(one.stream == 1 for one in frames(held))


def opened(served: TlsServer) -> ssl.SSLSocket:
    host, _, port = served.served.target.address.rpartition(":")
    plain = socket.create_connection((host, int(port)), 60)
    held = served.context().wrap_socket(plain, server_hostname=host)
    held.sendall(OPENING)
    return held
