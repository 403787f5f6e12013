"""A server that answers every predict call with the same bytes: what a transport costs by itself.

    python -m serving.bench.echo_server TRANSPORT RESPONSE_BYTES THREADS

It prints its port, and ends with its standard input.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from serving.rpc_handlers import INFER_METHOD, INFERENCE_SERVICE

_LARGEST_MESSAGE = 64 * 2**20
_EVENTS = 64


def main() -> None:
    """Serves until standard input ends."""
    transport, size, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    response = bytes(size)
    start = {"grpcio": _start_grpcio, "native": _start_native}[transport]
    sys.stdout.write(f"{start(response, threads)}\n")
    sys.stdout.flush()
    sys.stdin.read()


def _start_grpcio(response: bytes, threads: int) -> int:
    server = grpc.server(
        ThreadPoolExecutor(threads),
        options=[("grpc.max_receive_message_length", _LARGEST_MESSAGE)],
    )
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(lambda *_: response)
    }
    generic = grpc.method_handlers_generic_handler(INFERENCE_SERVICE, handlers)
    server.add_generic_rpc_handlers((generic,))
    server.add_registered_method_handlers(INFERENCE_SERVICE, handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _keep(server)
    return port


def _start_native(response: bytes, threads: int) -> int:
    from pygrpc_native import EVENT_CALL, NativeGrpcFront

    front = NativeGrpcFront("127.0.0.1:0", [(INFER_METHOD, False)], io_threads=1, call_details=True)
    front.start()

    def serve() -> None:
        while (events := front.recv_batch_details(_EVENTS)) is not None:
            for kind, call_id, *_ in events:
                if kind == EVENT_CALL:
                    front.respond(call_id, response)

    for _ in range(threads):
        threading.Thread(target=serve, daemon=True).start()
    return int(front.bound_port)


_KEPT: list[object] = []


def _keep(server: object) -> None:
    # A grpcio server that nobody holds stops.
    _KEPT.append(server)


if __name__ == "__main__":
    main()
