"""How a server is set up: every setting, once."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from serving.address import LAST_PORT, is_loopback, split_address
from serving.logs import LogFormat, LogLevel
from serving.setting import Group, Setting
from serving.trace_settings import DEFAULT_TRACE_RATIO, TraceSettings
from serving.version_policy import LATEST, VersionPolicy
from sharded_infer.device.device_choice import DeviceChoice, parse_cards
from sharded_infer.errors import InputError

MIB = 2**20
# In `load_models`.
ALL_MODELS = "*"
_DEFAULT_AGE_SECONDS = 60.0

_DAY = 86_400  # seconds


def _models(text: str, short: str | None = None, metavar: str | None = None) -> Setting:
    return Setting(Group.MODELS, text, short=short, metavar=metavar)


def _limit(text: str, unit: str = "", most: float | None = None) -> Setting:
    return Setting(Group.LIMITS, text, unit, at_least=1, at_most=most)


def _connections(text: str, unit: str = "", least: float = 1) -> Setting:
    return Setting(Group.CONNECTIONS, text, unit, at_least=least, at_most=2**31 // 1000)


def _security(text: str) -> Setting:
    return Setting(Group.SECURITY, text)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server's settings, and what its environment says beside them.

    The settings' meaning, units and bounds stand with them below, and in docs/configuration.md.

    Attributes:
        tracing: how requests are traced; None: not at all.
        tokens: lines as in `tokens_file`, from the environment.
    """

    repository: Annotated[
        str,
        _models(
            "Where versions are published: a folder, or a URL such as s3://bucket/prefix.",
            short="-r",
            metavar="REPO",
        ),
    ]
    model: Annotated[
        tuple[str, ...], _models("Model to serve; may be repeated; default: all.", short="-m")
    ] = ()
    model_control: Annotated[
        Literal["poll", "explicit"],
        _models("poll: serve all models; explicit: those that clients load."),
    ] = "poll"
    load_model: Annotated[
        tuple[str, ...],
        _models("With explicit: model to begin with; may be repeated; *: all."),
    ] = ()
    follow: Annotated[
        VersionPolicy,
        _models(
            "Versions to serve: latest, latest:N, labels:NAME,NAME (the first is the default) or "
            "versions:N,N."
        ),
    ] = LATEST
    strict: Annotated[
        bool,
        _models(
            "Start only if every model can be served; default: with those that can, and the "
            "others when they can."
        ),
    ] = False
    poll_seconds: Annotated[
        float,
        Setting(
            Group.MODELS,
            "Time between looks for new versions; 0: only at SIGHUP.",
            "s",
            at_least=0,
            at_most=_DAY,
        ),
    ] = 5.0
    spare_mib: Annotated[
        int,
        Setting(
            Group.MODELS,
            "Memory that must stay free beside a version that comes later, MiB.",
            "MiB",
            at_least=0,
        ),
    ] = 256
    topology: Annotated[
        str | None, _models("Published plan to use; default: each version's first.")
    ] = None
    cards: Annotated[
        str | None,
        _models(
            "CUDA devices of a plan's ranks on cards, by number, such as 0,0,1; default: one each, "
            "in order."
        ),
    ] = None
    rehearse_cards: Annotated[
        bool,
        _models(
            "Play a plan's cards on the host, slowly: to try a plan where there is no card. The "
            "towers' products are the host's."
        ),
    ] = False
    host: Annotated[str, Setting(Group.ADDRESSES, "Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int,
        Setting(Group.ADDRESSES, "gRPC port; 0 picks a free one.", at_least=0, at_most=LAST_PORT),
    ] = 8001
    metrics_port: Annotated[
        int,
        Setting(
            Group.ADDRESSES,
            "HTTP port: REST, live page, /metrics, /ready, /live; 0: any.",
            at_least=0,
            at_most=LAST_PORT,
        ),
    ] = 8002
    admin_address: Annotated[
        str | None,
        Setting(
            Group.ADDRESSES,
            "HOST:PORT where RPCs that change the server are answered, and nowhere else then; "
            "default: on the gRPC port.",
        ),
    ] = None
    metrics: Annotated[
        Literal["full", "basic", "off"],
        Setting(
            Group.OBSERVING,
            "What is counted. off: what ModelStatistics reports; basic: latencies, batches and "
            "queues too; full: ranks, rows, scores and processes too.",
        ),
    ] = "full"
    workers: Annotated[
        int,
        Setting(
            Group.RUNNING,
            "Processes that share the port and the tables' memory.",
            at_least=1,
            at_most=1024,
        ),
    ] = 1
    heartbeat_seconds: Annotated[
        float,
        Setting(
            Group.RUNNING,
            "Time without a sign of life after which a worker is killed and replaced; a batch that "
            "runs so long gives none; 0: never.",
            "s",
            at_least=0,
            at_most=_DAY,
        ),
    ] = 20.0
    executor: Annotated[
        Literal["inline", "batched", "auto"] | None,
        Setting(
            Group.RUNNING, "How requests are put together; default: as each model's spec says."
        ),
    ] = None
    max_delay_us: Annotated[
        int | None,
        Setting(
            Group.RUNNING,
            "Microseconds that batched models wait for more requests; default: as each model's "
            "spec says.",
            "µs",
            at_least=0,
            at_most=60_000_000,
        ),
    ] = None
    memory: Annotated[
        Literal["map", "huge"] | None,
        Setting(
            Group.RUNNING,
            "map: tables in the page cache; huge: a copy in 2 MiB pages, faster to read at random; "
            "default: as each model's spec says.",
        ),
    ] = None
    transport: Annotated[
        Literal["grpcio", "native"],
        Setting(
            Group.RUNNING,
            "native: HTTP/2 outside the GIL (extra `native`), for small requests.",
        ),
    ] = "grpcio"
    slots: Annotated[
        int,
        Setting(
            Group.RUNNING,
            "Batches run side by side in a worker; 0: its cores, or what its cards hold.",
            at_least=0,
            at_most=1024,
        ),
    ] = 0
    threads: Annotated[
        int,
        Setting(
            Group.RUNNING, "RPCs of a worker that have a thread (grpcio).", at_least=1, at_most=4096
        ),
    ] = 32
    shared_memory: Annotated[
        bool | None,
        Setting(
            Group.RUNNING,
            "Inputs and outputs in shared memory: clients reach all of /dev/shm that this process "
            "may open; default: only where --host is a loopback address.",
        ),
    ] = None
    max_concurrent_requests: Annotated[
        int, _limit("RPCs of a worker in progress; one more is refused unread.")
    ] = 128
    max_streams: Annotated[int, _limit("Streams of a worker; one more is refused.")] = 32
    max_stream_requests: Annotated[
        int, _limit("Requests of a stream in progress; more are left unread.")
    ] = 64
    max_queue_requests: Annotated[int, _limit("Requests of a worker that may wait for a slot.")] = (
        1024
    )
    max_queue_samples: Annotated[int, _limit("Samples of the requests that wait.")] = 2**20
    max_queue_mib: Annotated[int, _limit("Bytes of the requests that wait, MiB.", "MiB")] = 256
    max_batch: Annotated[int, _limit("Samples of a request.")] = 65536
    max_ids: Annotated[int, _limit("Ids of a request, in all tables that look them up.")] = 2**23
    max_inputs: Annotated[int, _limit("Inputs of a request.")] = 4096
    max_message_mib: Annotated[int, _limit("Size of a message, MiB.", "MiB", 2047)] = 64
    max_connections: Annotated[
        int | None, _connections("Connections of a worker (grpcio); default: no limit.")
    ] = None
    max_connection_streams: Annotated[
        int | None,
        _connections("Calls of a connection in progress (grpcio); more wait; default: no limit."),
    ] = None
    max_connection_age: Annotated[
        float | None,
        _connections(
            "Seconds after which clients connect anew, so that they spread over the workers; "
            f"0: never; default: {_DEFAULT_AGE_SECONDS:g} with several workers.",
            "s",
            least=0,
        ),
    ] = None
    max_metadata_kib: Annotated[
        int | None,
        _connections("Size of a call's metadata, KiB (grpcio); default: gRPC's.", "KiB"),
    ] = None
    keepalive_seconds: Annotated[
        float | None,
        _connections(
            "Time of silence after which a client is pinged (grpcio); default: gRPC's.", "s"
        ),
    ] = None
    keepalive_timeout_seconds: Annotated[
        float | None,
        _connections("Time for its answer, or it is dropped (grpcio); default: gRPC's.", "s"),
    ] = None
    http_max_connections: Annotated[
        int, _connections("HTTP connections of a worker; one more is closed at once.")
    ] = 1024
    http_header_kib: Annotated[
        int, _connections("Size of an HTTP request's line and headers, KiB.", "KiB")
    ] = 16
    http_header_seconds: Annotated[float, _connections("Time for them to come.", "s", 0.1)] = 10.0
    http_body_seconds: Annotated[
        float, _connections("Time for an HTTP request's body to come.", "s", 0.1)
    ] = 60.0
    http_idle_seconds: Annotated[
        float, _connections("Time between a response and the next request.", "s", 0.1)
    ] = 75.0
    min_ping_seconds: Annotated[
        float | None,
        _connections(
            "Least time between a client's pings without calls; after two that come sooner it is "
            "dropped (grpcio); default: gRPC's.",
            "s",
            least=0,
        ),
    ] = None
    insecure: Annotated[
        bool,
        _security("Listen on a public address without TLS or tokens: anybody may call."),
    ] = False
    tls_certificate: Annotated[
        str | None, _security("PEM file of the server's certificates; read again when it changes.")
    ] = None
    tls_key: Annotated[str | None, _security("PEM file of the certificate's private key.")] = None
    tls_client_ca: Annotated[
        str | None,
        _security("PEM file of the authorities that clients' certificates must be from (mTLS)."),
    ] = None
    tokens_file: Annotated[
        str | None,
        _security("File of bearer tokens and their scopes; read again at SIGHUP."),
    ] = None
    rate_limit: Annotated[
        float | None,
        Setting(
            Group.SECURITY,
            "Calls a second that a worker takes from a client, by token or address; default: no "
            "limit.",
            "calls/s",
            at_least=0.001,
            at_most=1e9,
        ),
    ] = None
    rate_burst: Annotated[
        int | None,
        Setting(
            Group.SECURITY,
            "Calls that a client may make at once; default: a second's worth.",
            at_least=1,
        ),
    ] = None
    grace_seconds: Annotated[
        float,
        Setting(
            Group.STOPPING,
            "Time between not being ready and draining, at SIGTERM.",
            "s",
            at_least=0,
            at_most=_DAY,
        ),
    ] = 2.0
    drain_seconds: Annotated[
        float,
        Setting(
            Group.STOPPING, "Time for requests in flight after that.", "s", at_least=0, at_most=_DAY
        ),
    ] = 30.0
    log_format: Annotated[
        LogFormat,
        Setting(Group.OBSERVING, "text, or json: one object a line, on the error stream."),
    ] = LogFormat.TEXT
    log_level: Annotated[
        LogLevel, Setting(Group.OBSERVING, "The least of the server's events that are logged.")
    ] = LogLevel.INFO
    slow_request_ms: Annotated[
        float | None,
        Setting(
            Group.OBSERVING,
            "Milliseconds from which on a request is logged with what made it slow; 0: none; "
            "default: twice its model's latency objective.",
            "ms",
            at_least=0,
        ),
    ] = None
    trace_endpoint: Annotated[
        str | None,
        Setting(
            Group.OBSERVING,
            "Collector of OpenTelemetry traces (OTLP over gRPC), such as http://localhost:4317 "
            "(extra `tracing`); default: as OTEL_EXPORTER_OTLP_ENDPOINT says.",
        ),
    ] = None
    trace_ratio: Annotated[
        float | None,
        Setting(
            Group.OBSERVING,
            "Share of the requests that are traced, of those whose client has not decided; "
            f"default: as OTEL_TRACES_SAMPLER says, or {DEFAULT_TRACE_RATIO:g}.",
            at_least=0,
            at_most=1,
        ),
    ] = None
    tracing: TraceSettings | None = None
    tokens: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other.

        Raises:
            InputError: naming them.
        """
        if self.load_model and not self.explicit:
            raise InputError("--load-model: expected with --model-control explicit, got poll")
        if self.model and self.explicit:
            raise InputError(
                "--model: expected with --model-control poll, got explicit: --load-model"
            )
        if (self.tls_certificate is None) is not (self.tls_key is None):
            raise InputError("tls_certificate and tls_key: expected both or neither, got one")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise InputError("tls_client_ca: expected with tls_certificate and tls_key, got alone")
        if self.rate_burst is not None and self.rate_limit is None:
            raise InputError("rate_burst: expected with rate_limit, got alone")
        if self.admin_address is not None:
            split_address(self.admin_address)
        parse_cards(self.cards)

    @property
    def devices(self) -> DeviceChoice | None:
        """What plans for cards are executed on; None: they are refused, for a card has one process.

        Forked processes cannot use the devices of the one they come from.
        """
        if self.workers > 1:
            return None
        return DeviceChoice(parse_cards(self.cards), self.rehearse_cards)

    @property
    def models(self) -> tuple[str, ...]:
        """The models to serve; empty: all of the repository."""
        return self.model

    @property
    def load_models(self) -> tuple[str, ...]:
        """The models to begin with where clients load them."""
        return self.load_model

    @property
    def explicit(self) -> bool:
        """Whether clients load and unload models."""
        return self.model_control == "explicit"

    @property
    def spare_bytes(self) -> int:
        """Memory that must stay free beside a version that comes later."""
        return self.spare_mib * MIB

    @property
    def max_queue_bytes(self) -> int:
        """Bytes of the requests that wait."""
        return self.max_queue_mib * MIB

    @property
    def max_message_bytes(self) -> int:
        """Size of a message."""
        return self.max_message_mib * MIB

    @property
    def http_header_bytes(self) -> int:
        """Size of an HTTP request's line and headers."""
        return self.http_header_kib * 1024

    @property
    def offers_shared_memory(self) -> bool:
        """Whether inputs and outputs may lie in shared memory."""
        return is_loopback(self.host) if self.shared_memory is None else self.shared_memory

    @property
    def max_connection_age_seconds(self) -> float | None:
        """After which clients are asked to connect anew; None: never."""
        if self.max_connection_age is None:
            several = self.workers > 1 and self.transport == "grpcio"
            return _DEFAULT_AGE_SECONDS if several else None
        return self.max_connection_age or None

    @property
    def has_tokens(self) -> bool:
        """Whether calls need a token."""
        return self.tokens_file is not None or self.tokens is not None
