"""Clients and files that disturb TLS, beside an honest client that is always answered."""

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

import grpc
import pytest
import trustme

from tests.attacks.attacker import (
    Attack,
    Attacker,
    HonestClient,
    Served,
    Target,
    call,
    grpc_channel,
    withstand,
)
from tests.attacks.conftest import INFER, attacked_server
from tests.attacks.faulty_calls import client_hello
from tests.attacks.grpc_attacks import OPENING
from tests.attacks.raw_http2 import END_HEADERS, HEADERS, block, frame, frames
from tests.attacks.test_hostile_files import put
from tests.support.servers import Ranker, good_inputs, infer_request
from tests.support.tls import IssuedFiles, issue_files
from tests.support.waiting import until

CALLS = 30
SLOW, PAUSE_SECONDS = 100, 0.05
# Renegotiation and old versions are the openssl command's to ask for.
OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="the command openssl is missing")
# Handshakes end soon.
SHORT_TIMES = """
import serving.grpc_api.compiled.settings as settings
settings._HANDSHAKE_SECONDS = 2.0
import serving.cli
serving.cli.main()
"""


class TlsServer:
    """A server that wants certificates of its clients, and what its clients have."""

    def __init__(self, folder: Path, address: str, pid: int, files: IssuedFiles) -> None:
        self.files = files
        client = files.authority.issue_cert("honest")
        self._pair = folder / "client.pem"
        client.private_key_and_cert_chain_pem.write_to_path(str(self._pair))
        credentials = grpc.ssl_channel_credentials(
            files.ca.read_bytes(), client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
        )
        message = infer_request(good_inputs(3)).SerializeToString()
        target = Target(address, INFER, message, credentials)
        with grpc_channel(target) as channel:
            self.served = Served(target, call(channel, target), pid)

    def context(self) -> ssl.SSLContext:
        context = self.files.context("h2")
        context.load_cert_chain(self._pair)
        return context


@contextmanager
def serving(ranker: Ranker, folder: Path) -> Iterator[TlsServer]:
    files, log = issue_files(folder), folder / "log"
    options = (*files.options(), "--tls-client-ca", files.ca)
    with attacked_server(ranker.repository, log, *options, program=SHORT_TIMES) as server:
        yield TlsServer(folder, server.grpc_url, server.process.pid, files)


@pytest.fixture(scope="module")
def secure(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    with serving(ranker, tmp_path_factory.mktemp("tls")) as running:
        yield running


def slow_handshakes(hello: bytes) -> Attack:
    def attack(attacker: Attacker) -> None:
        clients = [attacker.connect(b"") for _ in range(SLOW)]
        for at in range(len(hello)):
            for client in clients:
                client.sendall(hello[at : at + 1])
            attacker.pause(PAUSE_SECONDS)
            if attacker.stopped:
                return

    return attack


def again(opening: bytes) -> Attack:
    def attack(attacker: Attacker) -> None:
        with attacker.connect(opening) as client, suppress(OSError):
            client.recv(65536)

    return attack


def handshakes(context: ssl.SSLContext) -> Attack:
    def attack(attacker: Attacker) -> None:
        with (
            attacker.connect(b"") as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(OPENING + frame(HEADERS, END_HEADERS, 1, block(INFER)))
            client.recv(65536)

    return attack


def half_handshakes(hello: bytes) -> Attack:
    def attack(attacker: Attacker) -> None:
        for at in range(0, len(hello), 16):
            attacker.connect(hello[:at]).close()
            attacker.connect(hello[:at] + bytes(100)).close()

    return attack


ATTACKS: dict[str, Callable[[ssl.SSLContext], Attack]] = {
    "slow handshakes": lambda context: slow_handshakes(client_hello(context)),
    "broken handshakes": lambda context: half_handshakes(client_hello(context)),
    "handshakes that end well": handshakes,
    "plain HTTP/2": lambda _: again(OPENING),
    "plain HTTP/1.1": lambda _: again(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "garbage": lambda _: again(b"\x16\x03\x01\x40\x00" + b"\xff" * 0x4000),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_certified_client_is_answered_beside_others(secure: TlsServer, attack: str) -> None:
    withstand(secure.served, ATTACKS[attack](secure.context()))


@needs_openssl
@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_old_versions_of_tls_are_refused(secure: TlsServer, version: str) -> None:
    done = s_client(secure, version, "-cipher", "ALL:@SECLEVEL=0")
    assert "Cipher is (NONE)" in done.stdout, done.stdout


@needs_openssl
def test_a_client_cannot_negotiate_anew(secure: TlsServer) -> None:
    # A line that is R asks for it; the next one comes when that was refused.
    done = s_client(secure, "-tls1_2", said="R\n")
    assert "Cipher is (NONE)" not in done.stdout and "Cipher is" in done.stdout, done.stdout
    assert "RENEGOTIATING" in done.stderr + done.stdout
    assert "no renegotiation" in done.stderr.lower(), done.stderr


def s_client(secure: TlsServer, *more: str, said: str = "") -> "subprocess.CompletedProcess[str]":
    pair = str(secure.files.certificate.parent / "client.pem")
    argv = [
        str(OPENSSL), "s_client", "-connect", secure.served.target.address, "-alpn", "h2",
        "-cert", pair, "-key", pair, *more,
    ]  # fmt: skip
    return subprocess.run(argv, input=said, capture_output=True, text=True, timeout=60, check=False)


def connected(server: TlsServer) -> ssl.SSLSocket:
    host, _, port = server.served.target.address.rpartition(":")
    plain = socket.create_connection((host, int(port)), 60)
    return server.context().wrap_socket(plain, server_hostname=host)


def certificate_of(server: TlsServer) -> bytes:
    with connected(server) as client:
        found = client.getpeercert(binary_form=True)
        assert found is not None
        return found


BREAKS: dict[str, Callable[[Path], object]] = {
    "no PEM": lambda file: file.write_bytes(os.urandom(1000)),
    "another's": lambda file: trustme.CA().issue_cert("x").private_key_pem.write_to_path(str(file)),
    "missing": Path.unlink,
    "a FIFO": lambda file: put(file, "FIFO"),
}


def test_certificates_are_renewed_and_broken_files_ignored(ranker: Ranker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(ranker, tmp_path) as served:
        files = served.files
        target = served.served.target
        with HonestClient(target, served.served.answer) as honest, connected(served) as held:
            held.sendall(OPENING)
            before = certificate_of(served)
            places = cycle((files.key, files.certificate))
            for wrong, file in zip(BREAKS.values(), places, strict=False):
                kept, said = file.read_bytes(), log.read_text().count("stay as they were")
                wrong(file)
                assert certificate_of(served) == before
                until(
                    lambda: log.read_text().count("stay as they were") > said,  # noqa: B023
                    "the log says so",
                )
                honest.answered(2)
                file.unlink(missing_ok=True)
                file.write_bytes(kept)
                assert certificate_of(served) == before
            issued = files.authority.issue_cert("127.0.0.1", "localhost")
            files.key.write_bytes(issued.private_key_pem.bytes())
            files.certificate.write_bytes(issued.cert_chain_pems[0].bytes())
            assert certificate_of(served) != before
            honest.answered(CALLS)
            # A connection of before goes on.
            held.sendall(frame(HEADERS, END_HEADERS, 1, block(b"/no.Such/Method")))
            assert any(one.stream == 1 for one in frames(held))
