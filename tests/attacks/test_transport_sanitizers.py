"""The compiled transport under attack, built with sanitizers."""

import http.client
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from tests.attacks.attacker import MIB, Attacker, HonestClient, Served, Target
from tests.attacks.grpc_attacks import FLOODS, UNFINISHED
from tests.attacks.http_client import INFER
from tests.attacks.test_http2_client_peers import hostile_scripts, secured
from tests.attacks.test_http_connections import ATTACKS as OVER_HTTP
from tests.serving.transport.test_http1_requests import REFUSED
from tests.support.echo_servers import compiled_echo
from tests.support.scripted_server import scripted_server
from tests.support.tls import issue_files
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "tests/attacks/native/echo_server.cpp",
    *(
        f"native/transport/{name}.cpp"
        for name in (
            "answers",
            "calls",
            "connections",
            "http1_session",
            "http2_session",
            "messages",
            "server",
            "socket",
            "upkeep",
        )
    ),
    *(f"native/third_party/llhttp/{name}.c" for name in ("api", "http", "llhttp")),
)
CLIENT_SOURCES = (
    "tests/attacks/native/client_rounds.cpp",
    *(f"native/client/{name}.cpp" for name in ("client", "connection", "endpoint", "session")),
)
FLAGS = ("-std=c++17", "-O1", "-g", "-pthread", "-fno-sanitize-recover=all")
ATTACKS = UNFINISHED | FLOODS
CALLS = 10
ROUNDS = 15
SECONDS = 300


def language_of(source: str) -> str:
    return "c" if source.endswith(".c") else "c++"


def build(sources: Iterable[str], sanitizers: str, program: Path) -> None:
    command = [
        "g++",
        *FLAGS,
        f"-fsanitize={sanitizers}",
        "-Inative",
        *(word for source in sources for word in ("-x", language_of(source), source)),
        "-o",
        program,
        "-ldl",
    ]
    subprocess.run(command, cwd=ROOT, timeout=SECONDS, check=True)


@pytest.fixture(scope="module", params=["thread", "address,undefined"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("sanitizers")
    program, log = folder / "server", folder / "log"
    build(SOURCES, request.param, program)
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        port, http_port = int(process.stdout.readline()), int(process.stdout.readline())
        path = b"/inference.GRPCInferenceService/ModelInfer"
        target = Target(f"127.0.0.1:{port}", path, b"echo" * 700)
        yield Served(target, target.message, process.pid, f"127.0.0.1:{http_port}")
        process.stdin.close()
        left = process.stdout.read()
        code = process.wait(SECONDS)
    assert (code, left) == (0, "0 calls, 0 connections, 0 bytes\n"), left + log.read_text()[:6000]


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_meet_no_fault_that_a_sanitizer_finds(server: Served, attack: str) -> None:
    target = server.target
    with HonestClient(target, target.message) as honest, Attacker(target, ATTACKS[attack]) as bad:
        until(bad.struck.is_set, "the attack has been made", 240.0)
        honest.answered(CALLS)


def malformed(attacker: Attacker) -> None:
    """What is no request, whole and in pieces."""
    for raw in REFUSED.values():
        for size in (7, 1000, len(raw)):
            with suppress(OSError), closing(attacker.connect(b"")) as client:
                for begin in range(0, min(len(raw), 200 * size), size):
                    client.sendall(raw[begin : begin + size])
                while client.recv(MIB):
                    pass


HTTP_ATTACKS = OVER_HTTP | {"what is no request": malformed}


@pytest.mark.parametrize("attack", HTTP_ATTACKS)
def test_attacks_over_http_meet_no_fault_that_a_sanitizer_finds(
    server: Served, attack: str
) -> None:
    target = Target(server.http_address, b"", b"")
    with Attacker(target, HTTP_ATTACKS[attack], "127.0.0.1") as bad:
        until(bad.struck.is_set, "the attack has been made", 240.0)
        for size in range(0, 100_000, 100_000 // CALLS):
            with closing(
                http.client.HTTPConnection(
                    server.http_address, timeout=60, source_address=("127.66.4.1", 0)
                )
            ) as connection:
                connection.request("POST", INFER, bytes(size))
                response = connection.getresponse()
                assert (response.status, response.read()) == (200, bytes(size))


@pytest.fixture(scope="module", params=["thread", "address,undefined"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("sanitizers") / "client"
    build(CLIENT_SOURCES, request.param, program)
    return program


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_sanitizers_find_no_fault_in_the_client(client: Path, secure: bool, tmp_path: Path) -> None:
    issued = issue_files(tmp_path) if secure else None
    with ExitStack() as stack:
        addresses = [stack.enter_context(compiled_echo(issued))]
        for script in hostile_scripts():
            script = script if issued is None else secured(script, issued)
            addresses.append(stack.enter_context(scripted_server(script)).address)
        ports = [address.rpartition(":")[2] for address in addresses]
        command = [client, str(ROUNDS), str(issued.ca) if issued else "-", *ports]
        done = subprocess.run(command, timeout=SECONDS, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[:6000]
    assert int(done.stdout.removesuffix(" ended\n")) >= ROUNDS * len(ports)
