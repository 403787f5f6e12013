"""gRPC API of a process: RPCs, health and reflection, on the main and admin addresses.

Create it after any fork, because gRPC does not survive one.
"""

from collections.abc import Callable, Mapping

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.config.server_config import ServerConfig
from serving.control.control_plane import ControlPlane
from serving.grpc_api.admin_server import AdminServer
from serving.grpc_api.compiled.native_transport import NativeTransport
from serving.grpc_api.handlers import INFERENCE_SERVICE, PREDICTOR_SERVICE, HandlerTable
from serving.grpc_api.inference_service import InferenceService, PrepareService
from serving.host.unix_socket import UnixSocket
from serving.inference.data_plane import DataPlane
from serving.security.guard import Guard
from sharded_infer.v1 import predictor_pb2_grpc

_STATUS = health_pb2.HealthCheckResponse
_HEALTH_CHECK = f"/{health.SERVICE_NAME}/Check"
_LIVE = f"/{INFERENCE_SERVICE}/ServerLive"
_READY = f"/{INFERENCE_SERVICE}/ServerReady"
_ALIVE = service_pb2.ServerLiveResponse(live=True).SerializeToString()
_SERVICES = (INFERENCE_SERVICE, PREDICTOR_SERVICE)


class GrpcServer:
    """Answers gRPC calls from one process's models."""

    def __init__(
        self,
        config: ServerConfig,
        data_plane: DataPlane,
        control: ControlPlane,
        *,
        guard: Guard | None,
        unix_socket: UnixSocket | None = None,
        admin_socket: UnixSocket | None = None,
    ) -> None:
        """Prepares the RPCs; `listen` starts answering them.

        Args:
            guard: None admits every call.
            unix_socket: a further address.
            admin_socket: the admin address, if it is a Unix socket.
        """
        handlers = HandlerTable(
            data_plane,
            guard=guard,
            admin_elsewhere=config.admin_address is not None,
        )
        self._health = health.HealthServicer()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
            InferenceService(control), handlers
        )
        predictor_pb2_grpc.add_PredictorServicer_to_server(  # type: ignore[no-untyped-call]
            PrepareService(control), handlers
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, handlers)
        names = (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, handlers)
        handlers.add_predict_methods()
        # The health service's answers, by service or model name.
        self._healthy: dict[str, bool] = {}
        self._transport = NativeTransport(config, data_plane, handlers, unix_socket=unix_socket)
        self._transport.set_fixed_answer(_LIVE, b"", _ALIVE)
        self.show_health(False, {})
        self._admin = None
        if config.admin_address is not None:
            self._admin = AdminServer(
                config, config.admin_address, data_plane, handlers, admin_socket
            )

    def listen(self, port: int) -> int:
        """Starts answering on a port, where 0 picks a free one; returns the bound port.

        Raises:
            InputError: a port is not available, or the certificates cannot be used.
        """
        if self._admin is not None:
            self._admin.listen()
        return self._transport.listen(port)

    def warm(self, run: Callable[[], None]) -> None:
        """Calls `run` once on each thread that answers predict calls."""
        self._transport.warm(run)

    def show_health(self, healthy: bool, models: Mapping[str, bool]) -> None:
        """Updates the health service: of the server, and of each known model."""
        if self._healthy.get("", healthy) != healthy:
            # Until the server is first ready, a handler answers.
            ready = service_pb2.ServerReadyResponse(ready=healthy).SerializeToString()
            self._transport.set_fixed_answer(_READY, b"", ready)
        says = dict.fromkeys(("", *_SERVICES), healthy)
        says |= {name: healthy and is_served for name, is_served in models.items()}
        for name, is_serving in says.items():
            if self._healthy.get(name) != is_serving:
                status = _STATUS.SERVING if is_serving else _STATUS.NOT_SERVING
                self._health.set(name, status)
                # Probes are answered even where every handler is busy.
                question = health_pb2.HealthCheckRequest(service=name).SerializeToString()
                answer = _STATUS(status=status).SerializeToString()
                self._transport.set_fixed_answer(_HEALTH_CHECK, question, answer)
        self._healthy = says

    def drain(self) -> None:
        """Accepts no more streams; ends each open one once its received requests are answered."""
        self._transport.drain()

    def stop(self, seconds: float) -> None:
        """Accepts no more calls; returns when all are answered or `seconds` have passed."""
        if self._admin is not None:
            self._admin.stop()
        self._transport.stop(seconds)
