"""Upgrades: every process is replaced under requests, and messages have newer fields."""

import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
from google.protobuf.message import Message

from serving.protocol.lookups.lookup_messages import SHARD_HOST_SERVICE
from sharded_infer.v1.shard_host_pb2 import (
    DescribeRequest,
    DescribeResponse,
    LookupRequest,
    LookupResponse,
)
from tests.support.marked_rows import HOSTS, publish_marked
from tests.support.marked_traffic import marked_traffic
from tests.support.replaceable import running_pairs
from tests.support.servers import running_server
from tests.support.shard_host_processes import running_shard_host
from tests.support.waiting import until


def test_each_process_is_replaced_in_turn_and_no_request_fails(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish_marked(repository, 1)
    with (
        running_pairs(repository, tmp_path, exit_code=0) as pairs,
        marked_traffic(pairs.addresses) as seen,
    ):
        for one in (one for pair in pairs.all() for one in pair):
            asked = len(seen.seconds)
            until(lambda: len(seen.seconds) > asked + 50, "requests go on")  # noqa: B023
            one.running.process.send_signal(signal.SIGTERM)
            one.start()
        asked = len(seen.seconds)
        until(lambda: len(seen.seconds) > asked + 50, "requests go on")
    assert Counter(seen.errors) == {}
    assert seen.wrong == []


# A number and a text, under field numbers that no release has used.
NEWER = b"\xc0\x3e\x07" + b"\xca\x3e\x03new"


@contextmanager
def newer_release(address: str) -> Iterator[str]:
    """Stands before a shard host; adds fields to what is asked of it and to what it answers."""
    requests = {"Lookup": LookupRequest, "Describe": DescribeRequest}
    responses = {"Lookup": LookupResponse, "Describe": DescribeResponse}
    with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(16) as threads:

        def handler(method: str) -> grpc.RpcMethodHandler:
            call = channel.unary_unary(f"/{SHARD_HOST_SERVICE}/{method}")

            def answer(message: bytes, context: grpc.ServicerContext) -> bytes:
                asked = with_newer_fields(requests[method], message)
                return with_newer_fields(
                    responses[method], call(asked, timeout=context.time_remaining())
                )

            return grpc.unary_unary_rpc_method_handler(answer)

        server = grpc.server(threads)
        named = {method: handler(method) for method in requests}
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SHARD_HOST_SERVICE, named)]
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


def with_newer_fields(kind: type[Message], message: bytes) -> bytes:
    """The message with unknown fields, also in each message within it."""
    made = kind.FromString(message)
    for field, value in made.ListFields():
        if field.message_type is not None:
            for one in value:
                one.MergeFromString(NEWER)
    made.MergeFromString(NEWER)
    return made.SerializeToString()


def test_fields_of_a_newer_release_are_passed_over(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish_marked(repository, 1)
    with ExitStack() as stack:
        addresses = [
            stack.enter_context(
                newer_release(
                    stack.enter_context(
                        running_shard_host(repository, number, tmp_path / f"host{number}")
                    ).address
                )
            )
            for number in range(HOSTS)
        ]
        lines = [f'{number} = "{address}"' for number, address in enumerate(addresses)]
        file = tmp_path / "hosts.toml"
        file.write_text("\n".join(("timeout_ms = 30000", "[hosts]", *lines, "")))
        options = ("--shard-hosts", file)
        front = stack.enter_context(running_server(repository, tmp_path / "front", *options))
        with marked_traffic([front.grpc_url]) as seen:
            until(lambda: len(seen.seconds) > 200, "requests are answered")
    assert seen.errors == []
    assert seen.wrong == []
