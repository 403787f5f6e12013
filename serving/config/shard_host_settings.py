"""The settings of a shard host: those of a server, without towers, queues and REST."""

from serving.config.server_config import ServerConfig
from serving.config.setting import declared_settings

_ALL = declared_settings(ServerConfig)
SHARD_HOST_SETTINGS = {
    name: _ALL[name]
    for name in (
        "repository",
        "model",
        "poll_seconds",
        "topology",
        "host",
        "port",
        "http_port",
        "slots",
        "max_message_mib",
        "max_connections",
        "max_connection_age",
        "keepalive_seconds",
        "keepalive_timeout_seconds",
        "min_ping_seconds",
        "http_max_connections",
        "http_max_address_connections",
        "http_header_kib",
        "http_header_seconds",
        "http_body_seconds",
        "http_idle_seconds",
        "insecure",
        "tls_certificate",
        "tls_key",
        "tls_client_ca",
        "tokens_file",
        "drain_seconds",
        "log_format",
        "log_level",
        "trace_endpoint",
    )
}
