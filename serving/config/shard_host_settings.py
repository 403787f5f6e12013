"""Settings of a shard host: those of a server, without towers, queues and REST."""

from dataclasses import replace

from serving.config.server_config import ServerConfig
from serving.config.setting import DeclaredSetting, declared_settings

_NAMES = (
    "repository",
    "model",
    "poll_seconds",
    "row_memory_mib",
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
    "trusted_key",
    "drain_seconds",
    "log_format",
    "log_level",
    "trace_endpoint",
)
# Replaces a server's help about things that a shard host lacks: workers, batches, REST.
_OWN_HELP = {
    "model": "Model whose rows to hold; may be repeated; default: all.",
    "row_memory_mib": "Memory for the host's rows, of each version: those that are used most lie "
    "there, the others are read from the disk for each lookup; default: all rows are in memory.",
    "topology": "Published plan whose host this is; default: each version's first.",
    "http_port": "HTTP port: /metrics, /ready, /live; 0: any.",
    "slots": "Lookups that are answered at once; 0: as many as there are cores.",
    "max_connections": "Connections; default: half of the process's descriptors.",
    "max_connection_age": "Seconds after which fronts connect anew; 0, or not set: never.",
    "http_max_connections": "HTTP connections; for one more, the one is closed that waited "
    "longest for its client.",
    "drain_seconds": "Time at SIGTERM for lookups in flight.",
}


def _declared() -> dict[str, DeclaredSetting]:
    every = declared_settings(ServerConfig)
    found = {name: every[name] for name in _NAMES}
    for name, words in _OWN_HELP.items():
        found[name] = replace(found[name], said=replace(found[name].said, help=words))
    return found


SHARD_HOST_SETTINGS = _declared()
