"""Declares every setting of a server."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from serving.config.setting import Group, Setting
from serving.config.version_policy import LATEST, VersionPolicy
from serving.host.addresses import LAST_PORT, is_loopback, split_address
from serving.host.unix_socket import SCHEME, check_path
from serving.observability.log_lines import LogFormat, LogLevel
from serving.observability.trace_settings import DEFAULT_TRACE_RATIO, TraceSettings
from sharded_infer.engines.device.device_choice import DeviceChoice, parse_gpus
from sharded_infer.errors import InputError

MIB = 2**20
# For `load_models`.
ALL_MODELS = "*"
_DEFAULT_AGE_SECONDS = 60.0

_DAY = 86_400  # seconds


def _models(
    text: str, short: str | None = None, metavar: str | None = None, old_name: str | None = None
) -> Setting:
    return Setting(Group.MODELS, text, short=short, metavar=metavar, old_name=old_name)


def _limit(text: str, unit: str = "", most: float | None = None) -> Setting:
    return Setting(Group.LIMITS, text, unit, at_least=1, at_most=most)


def _connections(text: str, unit: str = "", least: float = 1) -> Setting:
    return Setting(Group.CONNECTIONS, text, unit, at_least=least, at_most=2**31 // 1000)


def _security(text: str) -> Setting:
    return Setting(Group.SECURITY, text)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server's settings, with tracing and tokens from its environment.

    Each setting declares its meaning, unit and bounds, also shown in docs/configuration.md.

    Attributes:
        tracing: None: no requests are traced.
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
    shadow: Annotated[
        str | None,
        _models(
            "Label of --follow, not the default's, whose version scores a share of the default's "
            "requests too, after they are answered and only where a run slot is idle.",
            metavar="LABEL",
        ),
    ] = None
    shadow_share: Annotated[
        float,
        Setting(
            Group.MODELS,
            "Share of the requests that name no version which --shadow scores too.",
            at_least=0,
            at_most=1,
        ),
    ] = 0.1
    strict: Annotated[
        bool,
        _models(
            "Start only if every model can be served; default: start with those that can, and "
            "serve the others once they can be."
        ),
    ] = False
    poll_seconds: Annotated[
        float,
        Setting(
            Group.MODELS,
            "Time between reads of the repository for new versions; 0: only at SIGHUP.",
            "s",
            at_least=0,
            at_most=_DAY,
        ),
    ] = 5.0
    spare_mib: Annotated[
        int,
        Setting(
            Group.MODELS,
            "Memory that must stay free when a new version is loaded, MiB.",
            "MiB",
            at_least=0,
        ),
    ] = 256
    user_cache_mib: Annotated[
        int,
        Setting(
            Group.MODELS,
            "Memory for what towers computed of users (tower.user_inputs), of all versions and "
            "workers together; 0: nothing is kept.",
            "MiB",
            at_least=0,
        ),
    ] = 0
    user_cache_bf16: Annotated[
        bool,
        Setting(
            Group.MODELS,
            "Round the kept states of histories to bf16: half the memory, and scores that are not "
            "those without a cache to the bit.",
        ),
    ] = False
    row_memory_mib: Annotated[
        int | None,
        Setting(
            Group.MODELS,
            "Memory for rows of tables, of each version, in all workers: those that are used most "
            "lie there, the others are read from the disk for each batch; default: all rows are in "
            "memory (memory).",
            "MiB",
            at_least=0,
        ),
    ] = None
    topology: Annotated[
        str | None, _models("Published plan to use; default: each version's first.")
    ] = None
    shard_hosts: Annotated[
        str | None,
        _models(
            "TOML file of the addresses of shard hosts, which hold the tables of a plan's other "
            "hosts; default: all tables are here.",
            metavar="FILE",
        ),
    ] = None
    gpus: Annotated[
        str | None,
        _models(
            "CUDA device of each GPU rank of a plan, by number, such as 0,0,1; default: one "
            "each, in order.",
            old_name="cards",
        ),
    ] = None
    simulate_gpus: Annotated[
        bool,
        _models(
            "Simulate a plan's GPUs on the host, slowly, to try a plan without a GPU. The "
            "towers' products are the host's.",
            old_name="rehearse_cards",
        ),
    ] = False
    host: Annotated[str, Setting(Group.ADDRESSES, "Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int,
        Setting(Group.ADDRESSES, "gRPC port; 0 picks a free one.", at_least=0, at_most=LAST_PORT),
    ] = 8001
    http_port: Annotated[
        int,
        Setting(
            Group.ADDRESSES,
            "HTTP port: REST, live page, /metrics, /ready, /live; 0: any.",
            at_least=0,
            at_most=LAST_PORT,
            old_name="metrics_port",
        ),
    ] = 8002
    unix_socket: Annotated[
        str | None,
        Setting(
            Group.ADDRESSES,
            "Path of a Unix socket on which gRPC is answered too; who may write to the file may "
            "connect.",
            metavar="PATH",
        ),
    ] = None
    http_unix_socket: Annotated[
        str | None,
        Setting(Group.ADDRESSES, "The same, for HTTP.", metavar="PATH"),
    ] = None
    admin_address: Annotated[
        str | None,
        Setting(
            Group.ADDRESSES,
            "HOST:PORT or unix:PATH that alone answers RPCs that change the server; default: the "
            "gRPC port does.",
        ),
    ] = None
    metrics: Annotated[
        Literal["full", "basic", "off"],
        Setting(
            Group.OBSERVING,
            "What is counted. off: the counts of ModelStatistics; basic: also latencies, "
            "batches and queues; full: also ranks, rows, scores and processes.",
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
            "Time without a sign of life after which a worker is killed and replaced; a batch "
            "that runs this long gives none; 0: never.",
            "s",
            at_least=0,
            at_most=_DAY,
        ),
    ] = 20.0
    executor: Annotated[
        Literal["inline", "batched", "auto"] | None,
        Setting(Group.RUNNING, "How requests are batched; default: as each model's spec says."),
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
        Literal["auto", "map", "huge"] | None,
        Setting(
            Group.RUNNING,
            "Tables: auto: mapped in 2 MiB pages, or what comes closest; map: mapped in the page "
            "cache's pages; huge: a copy in 2 MiB pages; default: as each model's spec says.",
        ),
    ] = None
    precision: Annotated[
        Literal["auto", "published", "fp32"],
        Setting(
            Group.RUNNING,
            "Products of towers on processors: auto: the fastest that are at least as exact as the "
            "published precision; published: those of the published precision; fp32.",
        ),
    ] = "auto"
    slots: Annotated[
        int,
        Setting(
            Group.RUNNING,
            "Batches that a worker runs at once; 0: as many as its cores, or as its GPUs have "
            "slots for.",
            at_least=0,
            at_most=1024,
        ),
    ] = 0
    busy_poll_us: Annotated[
        int,
        Setting(
            Group.RUNNING,
            "Microseconds that a worker looks for gRPC calls before it sleeps, on two cores of its "
            "own: an idle server answers sooner.",
            "µs",
            at_least=0,
            at_most=100_000,
        ),
    ] = 0
    shared_memory: Annotated[
        bool | None,
        Setting(
            Group.RUNNING,
            "Allow inputs and outputs in shared memory: clients can reach all of /dev/shm that "
            "this process may open; default: only if --host is a loopback address.",
        ),
    ] = None
    max_concurrent_requests: Annotated[
        int, _limit("RPCs in progress in a worker; one more is refused unread.")
    ] = 8192
    max_streams: Annotated[int, _limit("Streams of a worker; one more is refused.")] = 32
    max_stream_requests: Annotated[
        int, _limit("Requests in progress in a stream; more are left unread.")
    ] = 64
    max_queue_requests: Annotated[
        int, _limit("Requests of a worker that may wait for a run slot.")
    ] = 8192
    max_queue_samples: Annotated[int, _limit("Samples of the waiting requests.")] = 2**20
    max_queue_mib: Annotated[int, _limit("Bytes of the waiting requests, MiB.", "MiB")] = 256
    max_batch: Annotated[int, _limit("Samples of a request.")] = 65536
    max_ids: Annotated[
        int, _limit("Ids of a request, counted once for each table that looks them up.")
    ] = 2**23
    max_inputs: Annotated[int, _limit("Inputs of a request.")] = 4096
    max_message_mib: Annotated[int, _limit("Size of a message, MiB.", "MiB", 2047)] = 64
    max_connections: Annotated[
        int | None,
        _connections("Connections of a worker; default: half of its descriptors."),
    ] = None
    max_connection_streams: Annotated[
        int | None,
        _connections("Calls in progress in a connection; more wait; default: 8192."),
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
        _connections("Size of a call's metadata, KiB; default: 16.", "KiB"),
    ] = None
    keepalive_seconds: Annotated[
        float | None,
        _connections("Idle time after which a client is pinged; default: 2 hours.", "s"),
    ] = None
    keepalive_timeout_seconds: Annotated[
        float | None,
        _connections(
            "Time to answer a keepalive ping, or the connection is dropped; default: 20 s.",
            "s",
        ),
    ] = None
    http_max_connections: Annotated[
        int,
        _connections(
            "HTTP connections of a worker; for one more, the one is closed that waited longest for "
            "its client."
        ),
    ] = 1024
    http_max_address_connections: Annotated[
        int, _connections("The same, from one address (IPv6: from one /64 network).")
    ] = 768
    http_header_kib: Annotated[
        int, _connections("Size of an HTTP request's line and headers, KiB.", "KiB")
    ] = 16
    http_header_seconds: Annotated[
        float, _connections("Time for an HTTP request's line and headers to arrive.", "s", 0.1)
    ] = 10.0
    http_body_seconds: Annotated[
        float,
        _connections("Time for an HTTP request's body, and for its answer to be read.", "s", 0.1),
    ] = 60.0
    http_idle_seconds: Annotated[
        float, _connections("Time between an HTTP response and the next request.", "s", 0.1)
    ] = 75.0
    min_ping_seconds: Annotated[
        float | None,
        _connections(
            "Least time between a client's pings without calls; after two that come sooner the "
            "connection is dropped; default: 5 minutes.",
            "s",
            least=0,
        ),
    ] = None
    insecure: Annotated[
        bool,
        _security("Listen on a public address without TLS or tokens: anyone may call."),
    ] = False
    tls_certificate: Annotated[
        str | None, _security("PEM file of the server's certificates; reloaded when it changes.")
    ] = None
    tls_key: Annotated[str | None, _security("PEM file of the certificate's private key.")] = None
    tls_client_ca: Annotated[
        str | None,
        _security("PEM file of the authorities that clients' certificates must be from (mTLS)."),
    ] = None
    tokens_file: Annotated[
        str | None,
        _security("File of bearer tokens and their scopes; reloaded at SIGHUP."),
    ] = None
    trusted_key: Annotated[
        tuple[str, ...],
        Setting(
            Group.SECURITY,
            "PEM file of public keys (ed25519); only versions that one of them has signed are "
            "loaded; may be repeated; read anew when it changes; default: signatures are not "
            "looked at.",
            metavar="FILE",
        ),
    ] = ()
    rate_limit: Annotated[
        float | None,
        Setting(
            Group.SECURITY,
            "Calls a second that a worker accepts from a client, by token or address; default: "
            "no limit.",
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
            "Time at SIGTERM between reporting not ready and draining.",
            "s",
            at_least=0,
            at_most=_DAY,
        ),
    ] = 2.0
    drain_seconds: Annotated[
        float,
        Setting(
            Group.STOPPING,
            "Time for requests in flight after the grace time.",
            "s",
            at_least=0,
            at_most=_DAY,
        ),
    ] = 30.0
    log_format: Annotated[
        LogFormat,
        Setting(Group.OBSERVING, "text, or json: one object a line; both on stderr."),
    ] = LogFormat.TEXT
    log_level: Annotated[
        LogLevel, Setting(Group.OBSERVING, "Lowest level of the server's events that is logged.")
    ] = LogLevel.INFO
    slow_request_ms: Annotated[
        float | None,
        Setting(
            Group.OBSERVING,
            "Milliseconds from which a request is logged with what made it slow; 0: none; "
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
    record: Annotated[
        str | None,
        Setting(
            Group.OBSERVING,
            "Folder, or URL such as s3://bucket/prefix, to record requests and scores in (extra "
            "`parquet`); default: none are recorded.",
            metavar="PLACE",
        ),
    ] = None
    record_share: Annotated[
        float,
        Setting(
            Group.OBSERVING,
            "Share of the requests that --record records, by their routing keys, else ids.",
            at_least=0,
            at_most=1,
        ),
    ] = 0.01
    record_hash: Annotated[
        tuple[str, ...],
        Setting(
            Group.OBSERVING,
            "Sparse input whose ids --record replaces by their keyed hash; may be repeated.",
            metavar="INPUT",
        ),
    ] = ()
    record_hash_key: Annotated[
        str | None,
        Setting(Group.OBSERVING, "File with the key of --record-hash, 16 to 64 bytes."),
    ] = None
    record_without: Annotated[
        tuple[str, ...],
        Setting(
            Group.OBSERVING,
            "Input that --record leaves out; may be repeated.",
            metavar="INPUT",
        ),
    ] = ()
    warm_from: Annotated[
        str | None,
        Setting(
            Group.MODELS,
            "Recorded requests (--record), a folder or URL, whose latest a version scores before "
            "it is ready: at most 1,000, in 10 s (extra `parquet`).",
            metavar="RECORD",
        ),
    ] = None
    tracing: TraceSettings | None = None
    tokens: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises InputError for settings that contradict each other, and names them."""
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
        if self.admin_address is not None and self.admin_socket is None:
            split_address(self.admin_address)
        self._check_sockets()
        self._check_shadow()
        if bool(self.record_hash) is not (self.record_hash_key is not None):
            raise InputError("record_hash and record_hash_key: expected both or neither, got one")
        parse_gpus(self.gpus)

    def _check_shadow(self) -> None:
        if self.shadow is None:
            return
        if self.shadow not in self.follow.labels[1:]:
            raise InputError(
                "shadow: expected a label of --follow labels:NAME,NAME behind the first, got "
                f"{self.shadow!r} with {self.follow}"
            )
        if self.metrics == "off":
            raise InputError("shadow: expected with metrics full or basic, got off")

    def _check_sockets(self) -> None:
        paths = [self.unix_socket, self.http_unix_socket, self.admin_socket]
        named = [path for path in paths if path is not None]
        for path in named:
            check_path(path)
        if len(set(named)) < len(named):
            raise InputError(
                "unix_socket, http_unix_socket and admin_address: expected a path for each, got "
                f"one twice: {', '.join(named)}"
            )

    @property
    def admin_socket(self) -> str | None:
        """Unix socket of the admin address, or None."""
        address = self.admin_address
        if address is None or not address.startswith(SCHEME):
            return None
        return address.removeprefix(SCHEME)

    @property
    def devices(self) -> DeviceChoice | None:
        """Devices for plans with GPUs; None: they are refused, as a GPU has one process.

        Forked processes cannot use the devices of their parent.
        """
        if self.workers > 1:
            return None
        return DeviceChoice(parse_gpus(self.gpus), self.simulate_gpus)

    @property
    def models(self) -> tuple[str, ...]:
        """Models to serve; empty: all of the repository."""
        return self.model

    @property
    def load_models(self) -> tuple[str, ...]:
        """Models to load at start under explicit control."""
        return self.load_model

    @property
    def explicit(self) -> bool:
        """True if clients load and unload models."""
        return self.model_control == "explicit"

    @property
    def row_memory_bytes(self) -> int | None:
        """Memory for rows of tables, of each version; None: all are in memory."""
        return None if self.row_memory_mib is None else self.row_memory_mib * MIB

    @property
    def spare_bytes(self) -> int:
        """Memory that must stay free when a new version is loaded."""
        return self.spare_mib * MIB

    @property
    def max_queue_bytes(self) -> int:
        """Limit of waiting requests' bytes."""
        return self.max_queue_mib * MIB

    @property
    def max_message_bytes(self) -> int:
        """Largest message."""
        return self.max_message_mib * MIB

    @property
    def http_header_bytes(self) -> int:
        """Largest line and headers of an HTTP request."""
        return self.http_header_kib * 1024

    @property
    def offers_shared_memory(self) -> bool:
        """True if inputs and outputs may be in shared memory."""
        return is_loopback(self.host) if self.shared_memory is None else self.shared_memory

    @property
    def max_connection_age_seconds(self) -> float | None:
        """Seconds after which clients are asked to reconnect; None: never."""
        if self.max_connection_age is None:
            return _DEFAULT_AGE_SECONDS if self.workers > 1 else None
        return self.max_connection_age or None

    @property
    def has_tokens(self) -> bool:
        """True if calls need a token."""
        return self.tokens_file is not None or self.tokens is not None
