import shutil
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import numpy as np
import pytest

from serving.status import Status, StatusCode
from serving.transport.client_settings import ClientLimits, ClientTls, Endpoint
from serving.transport.events import Event
from serving.transport.http2_client import Answer, Http2Client, OutgoingCall
from serving.transport.http2_server import Http2Server
from sharded_infer.errors import InputError, InternalError
from tests.support.echo_servers import PATH, compiled_echo, grpcio_echo
from tests.support.tls import IssuedFiles, issue_files
from tests.support.waiting import until

SECONDS = 60.0
SERVERS = {"compiled": compiled_echo, "grpcio": grpcio_echo}


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> IssuedFiles:
    return issue_files(tmp_path_factory.mktemp("tls"))


def client_of(
    *addresses: str,
    limits: ClientLimits = ClientLimits(),  # noqa: B008 (it is frozen)
    tls: ClientTls | None = None,
    token: str | None = None,
    paths: tuple[str, ...] = (PATH,),
) -> Http2Client:
    endpoints = [Endpoint(address, f"host-{at}") for at, address in enumerate(addresses)]
    return Http2Client(endpoints, paths, limits, tls=tls, token=token)


def messages_of(answers: list[Answer]) -> list[bytes]:
    assert [answer.status for answer in answers] == [None] * len(answers)
    return [bytes(answer.message) for answer in answers]


def ask(client: Http2Client, *texts: bytes) -> list[Answer]:
    client.start([OutgoingCall(0, text, SECONDS) for text in texts])
    return client.finish()


def only(answers: list[Answer]) -> Status:
    (answer,) = answers
    assert answer.status is not None
    return answer.status


@pytest.fixture(params=["compiled", "grpcio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["plain", "tls"])
def four(
    request: pytest.FixtureRequest, kind: str, issued: IssuedFiles
) -> Iterator[tuple[list[str], ClientTls | None]]:
    files = issued if request.param == "tls" else None
    with ExitStack() as stack:
        servers: list[AbstractContextManager[str]] = [SERVERS[kind](files) for _ in range(4)]
        yield [stack.enter_context(one) for one in servers], files and ClientTls(files.ca)


def test_four_servers_are_asked_at_once(four: tuple[list[str], ClientTls | None]) -> None:
    addresses, tls = four
    generator = np.random.default_rng(1)
    with client_of(*addresses, tls=tls) as client:
        for size in (0, 1, 4096, 2**20, 8 * 2**20):
            sent = [generator.bytes(size) for _ in addresses]
            numbers = client.start([OutgoingCall(at, sent[at], SECONDS) for at in range(4)])
            assert list(numbers) == [0, 1, 2, 3]
            assert messages_of(client.finish()) == sent


def test_many_calls_share_a_connection(kind: str) -> None:
    with SERVERS[kind]() as address, client_of(f"localhost:{address.rpartition(':')[2]}") as client:
        sent = [bytes([at % 256]) * at for at in range(300)]
        client.start([OutgoingCall(0, one, SECONDS) for one in sent[:150]])
        client.start([OutgoingCall(0, one, SECONDS) for one in sent[150:]])
        assert messages_of(client.finish()) == sent


def test_an_answer_that_is_still_read_keeps_its_memory() -> None:
    with compiled_echo() as address, client_of(address) as client:
        first = ask(client, b"\x01" * 5000)[0].message
        read = np.frombuffer(first, np.uint8)
        for value in range(2, 20):
            ask(client, bytes([value]) * 5000)
    del first
    assert read.tolist() == [1] * 5000


def test_headers_are_those_of_grpc() -> None:
    seen: list[Event] = []

    def keep(server: Http2Server, event: Event) -> None:
        seen.append(event)
        server.respond(event.call, b"")

    with (
        compiled_echo(respond=keep) as address,
        client_of(address, token="secret") as client,  # noqa: S106
    ):
        trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        client.start(
            [OutgoingCall(0, b"", 7.0, traceparent=trace), OutgoingCall(0, b"", 3_000_000.0)]
        )
        messages_of(client.finish())
    first, second = (dict(event.metadata) for event in seen)
    assert first["traceparent"] == trace.decode()
    assert "traceparent" not in second
    assert first["authorization"] == "Bearer secret"
    assert first["user-agent"] == "sharded-infer"
    assert seen[0].seconds_left is not None and 0.0 < seen[0].seconds_left <= 7.0
    assert seen[1].seconds_left is not None and seen[1].seconds_left > 2_000_000.0


def test_a_status_and_its_words_arrive_without_control_characters() -> None:
    words = "größer als 100% / \n\x1b[31m\x7f" + "!" * 5000

    def refuse(server: Http2Server, event: Event) -> None:
        server.finish(event.call, Status(StatusCode.FAILED_PRECONDITION, words))

    with compiled_echo(respond=refuse) as address, client_of(address) as client:
        found = only(ask(client, b"x" * 100_000))
    assert found.code is StatusCode.FAILED_PRECONDITION and len(found.message) == 4096
    assert found.message.startswith("größer als 100% / \ufffd\ufffd[31m\ufffd!")


def test_an_unknown_method_is_unimplemented(kind: str) -> None:
    with SERVERS[kind]() as address, client_of(address, paths=("/a.B/C",)) as client:
        assert only(ask(client, b"x" * 2**20)).code is StatusCode.UNIMPLEMENTED


def test_an_answer_above_the_limit_costs_no_other_call() -> None:
    limits = ClientLimits(answer_bytes=1000)
    with compiled_echo() as address, client_of(address, limits=limits) as client:
        first, second, third = ask(client, *(b"x" * size for size in (1001, 1000, 2**20)))
        assert second.message == b"x" * 1000
        assert third.status is not None
        assert first.status == Status(
            StatusCode.RESOURCE_EXHAUSTED,
            "host-0: the answer has 1001 bytes, at most 1000 are allowed",
        )


def test_calls_end_one_by_one_and_more_may_be_added() -> None:
    held: list[int] = []

    def hold(server: Http2Server, event: Event) -> None:
        if event.message == b"hold":
            held.append(event.call)
            return
        server.respond(event.call, event.message)
        if event.message == b"free":
            server.respond(held.pop(), b"held")

    with (
        compiled_echo(respond=hold) as one,
        compiled_echo() as other,
        client_of(one, other) as client,
    ):
        for _ in range(3):
            client.start([OutgoingCall(0, b"hold", SECONDS), OutgoingCall(1, b"quick", SECONDS)])
            assert client.wait(SECONDS) == [1]
            assert client.result(1).message == b"quick"
            assert client.wait(0.01) == []
            with pytest.raises(InternalError, match="has not ended"):
                client.result(0)
            # The same from another, and the one that is late is given up.
            assert list(client.start([OutgoingCall(1, b"again", SECONDS)])) == [2]
            assert client.wait(SECONDS) == [2]
            client.cancel(0)
            client.cancel(0)
            late, _, again = client.finish()
            assert late.status is not None and late.status.code is StatusCode.CANCELLED
            assert again.message == b"again"
        held.clear()
        client.start([OutgoingCall(0, b"hold", SECONDS)])
        client.clear()
        assert messages_of(ask(client, b"hold", b"free")) == [b"held", b"free"]


def test_unix_sockets_carry_calls(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'socket'}"
    with grpcio_echo(address=address) as _, client_of(address) as client:
        assert messages_of(ask(client, b"x" * 2**20)) == [b"x" * 2**20]


def test_addresses_where_nobody_listens_are_unavailable_and_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    addresses = (f"127.0.0.1:{port}", f"unix:{tmp_path / 'none'}", "no-such-host.invalid:1")
    with client_of(*addresses) as client:
        for _ in range(4):
            client.start([OutgoingCall(at, b"x", SECONDS) for at in range(3)])
            refused, missing, unknown = (answer.status for answer in client.finish())
            assert refused == Status(StatusCode.UNAVAILABLE, "host-0: Connection refused")
            assert missing == Status(StatusCode.UNAVAILABLE, "host-1: No such file or directory")
            assert unknown is not None and unknown.code is StatusCode.UNAVAILABLE
            assert unknown.message.startswith("host-2: the name cannot be looked up")


@pytest.mark.parametrize("address", ["", "host", "host:", "host:0", "host:65536", ":80", "host:x"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InputError, match="host-0: expected HOST:PORT or unix:PATH"):
        client_of(address)


def test_both_ends_may_show_certificates_and_plain_and_tls_do_not_meet(issued: IssuedFiles) -> None:
    known = ClientTls(issued.ca, issued.certificate, issued.key)
    with (
        compiled_echo(issued, client_ca=issued.ca) as address,
        compiled_echo() as plain,
        client_of(address, tls=known) as client,
    ):
        assert messages_of(ask(client, b"x")) == [b"x"]
        # The server's words are lost where it closes before it has read the call.
        for other, tls in ((address, ClientTls(issued.ca)), (address, None), (plain, known)):
            with client_of(other, tls=tls) as stranger:
                assert only(ask(stranger, b"x")).code is StatusCode.UNAVAILABLE


def test_authorities_that_have_changed_are_used_by_the_next_connection(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = issue_files(tmp_path / "old"), issue_files(tmp_path / "new")
    known = tmp_path / "known.pem"
    shutil.copy(old.ca, known)
    with (
        compiled_echo(old) as first,
        compiled_echo(new) as second,
        client_of(first, second, tls=ClientTls(known)) as client,
    ):

        def answered() -> list[bool]:
            client.start([OutgoingCall(at, b"x", SECONDS) for at in range(2)])
            return [answer.status is None for answer in client.finish()]

        assert answered() == [True, False]
        # Half a file is there for a moment: what was read before stays in use.
        known.write_text("-----BEGIN CERTIFICATE-----\n")
        assert answered() == [True, False]
        shutil.copy(new.ca, known)
        until(lambda: answered() == [True, True], "the second is connected to after its pause")


def test_a_certificate_of_another_authority_or_name_is_refused(
    kind: str, issued: IssuedFiles, tmp_path: Path
) -> None:
    stranger = issue_files(tmp_path)
    with SERVERS[kind](issued) as address:
        with client_of(address, tls=ClientTls(stranger.ca)) as client:
            status = only(ask(client, b"x"))
            assert status.code is StatusCode.UNAVAILABLE
            assert status.message.startswith("host-0: TLS: ")
            assert "certificate" in status.message
        for name, reason in (("127.0.0.2", "IP address mismatch"), ("other", "hostname mismatch")):
            endpoint = Endpoint(address, "host", name)
            tls = ClientTls(issued.ca)
            with Http2Client([endpoint], [PATH], ClientLimits(), tls=tls) as client:
                assert reason.lower() in only(ask(client, b"x")).message.lower()
        named = Endpoint(address, "host", "localhost")
        with Http2Client([named], [PATH], ClientLimits(), tls=ClientTls(issued.ca)) as client:
            assert messages_of(ask(client, b"x")) == [b"x"]


@pytest.mark.parametrize("missing", ["ca", "certificate", "key"])
def test_files_that_cannot_be_used_are_refused(issued: IssuedFiles, missing: str) -> None:
    files = {"ca": issued.ca, "certificate": issued.certificate, "key": issued.key}
    files[missing] = issued.ca.parent
    with pytest.raises(InputError, match="is no regular file"):
        client_of("127.0.0.1:1", tls=ClientTls(**files))
