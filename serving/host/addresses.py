"""Addresses and ports that a server listens on."""

from ipaddress import ip_address

from sharded_infer.errors import InputError

LAST_PORT = 65535


def is_loopback(host: str) -> bool:
    """True if an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; raise InputError for another form."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= LAST_PORT:
        raise InputError(
            f"admin_address: expected unix:PATH, or HOST:PORT with a port from 1 to {LAST_PORT}, "
            f"got {address!r}"
        )
    return host, int(port)
