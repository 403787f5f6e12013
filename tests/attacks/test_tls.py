"""Clients and files that disturb TLS, beside an honest client that is always answered."""

import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from tests.attacks.attacker import Attacker, Served
from tests.attacks.campaign import client_hello
from tests.attacks.conftest import INFER
from tests.attacks.grpc_attacks import OPENING, Attack
from tests.attacks.honest_client import beside_an_honest_client, withstand
from tests.attacks.raw_http2 import END_HEADERS, HEADERS, block, frame
from tests.attacks.tls_server import TlsServer, serving
from tests.support.servers import Ranker
from tests.support.tls import IssuedFiles, issue_files

CALLS = 30
SLOW, PAUSE_SECONDS = 100, 0.05
# Renegotiation and old versions are the openssl command's to ask for.
OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="the command openssl is missing")


@pytest.fixture(scope="module")
def secure(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    with serving(ranker, tmp_path_factory.mktemp("tls")) as running:
        yield running


def slow_handshakes(hello: bytes) -> Attack:
    """Many connections that send a byte now and then."""

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
    """Connections one after another that say this and go."""

    def attack(attacker: Attacker) -> None:
        with attacker.connect(opening) as client, suppress(OSError):
            client.recv(65536)

    return attack


def handshakes(context: ssl.SSLContext) -> Attack:
    """Handshakes one after another, as far as the server takes part, and a call on each."""

    def attack(attacker: Attacker) -> None:
        with (
            attacker.connect(b"") as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            client.sendall(OPENING + frame(HEADERS, END_HEADERS, 1, block(INFER)))
            client.recv(65536)

    return attack


def half_handshakes(hello: bytes) -> Attack:
    """Handshakes that are broken off after each number of bytes."""

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
def test_a_client_with_a_certificate_is_answered_beside_others(
    secure: TlsServer, attack: str
) -> None:
    withstand(secure.served, ATTACKS[attack](secure.context()))


def without_a_certificate(files: IssuedFiles) -> ssl.SSLContext:
    return files.context("h2")


def with_a_strangers(files: IssuedFiles) -> ssl.SSLContext:
    context = files.context("h2")
    trustme.CA().issue_cert("honest").configure_cert(context)
    return context


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("make", [without_a_certificate, with_a_strangers])
def test_clients_without_a_valid_certificate_are_not_answered(
    secure: TlsServer,
    make: Callable[[IssuedFiles], ssl.SSLContext],
    newest: ssl.TLSVersion,
) -> None:
    context = make(secure.files)
    context.maximum_version = newest
    with beside_an_honest_client(secure.served):
        for _ in range(CALLS):
            # With TLS 1.3 the client learns it when it reads.
            with pytest.raises(OSError):  # noqa: PT011 - of TLS, or the connection's
                speak(secure.served.target.address, context)


def speak(address: str, context: ssl.SSLContext) -> bytes:
    """What a server says first over TLS."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 60) as plain,
        context.wrap_socket(plain, server_hostname=host) as client,
    ):
        client.sendall(OPENING)
        said = client.recv(65536)
        if not said:
            raise ConnectionError("closed")
        return said


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


def s_client(
    secure: TlsServer, *options: str, said: str = ""
) -> "subprocess.CompletedProcess[str]":
    pair = str(secure.files.certificate.parent / "client.pem")
    words = [
        str(OPENSSL), "s_client", "-connect", secure.served.target.address, "-alpn", "h2",
        "-cert", pair, "-key", pair, *options,
    ]  # fmt: skip
    return subprocess.run(
        words, input=said, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_plain_port_answers_others_while_clients_try_tls(served: Served, tmp_path: Path) -> None:
    withstand(served, handshakes(issue_files(tmp_path).context("h2")))
