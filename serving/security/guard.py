"""Tokens and rates that decide which calls a process admits."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from serving.config.server_config import ServerConfig
from serving.config.setting_sources import TOKENS_VARIABLE
from serving.security.access import Credential, parse_tokens
from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import read_regular

# Of a token file.
_MOST_BYTES = 16 * 2**20

_log = logging.getLogger("sharded_infer")
_READABLE_BY_ALL = 0o004


class GuardedServer(Protocol):
    """A server that admits calls by tokens and rates (`serving/transport`)."""

    @property
    def address(self) -> int:
        """Address of the compiled server."""
        ...

    def set_tokens(self, credentials: Sequence[Credential] | None) -> None:
        """Replaces the tokens; None: calls need none."""
        ...


class Guard:
    """Tokens of one process's servers, which count their clients' calls together.

    Attributes:
        credentials: the known tokens; None: calls need none.
        rates_of: the server whose rates the others share; None before the first.
    """

    def __init__(
        self,
        credentials: Sequence[Credential] | None,
        read: Callable[[], Sequence[Credential] | None] = lambda: None,
    ) -> None:
        """Stores the tokens; `read` reloads them."""
        self.credentials = credentials
        self.rates_of: GuardedServer | None = None
        self._read = read
        self._servers: list[GuardedServer] = []

    def attach(self, server: GuardedServer) -> None:
        """Tells a server that has these tokens of reloaded ones."""
        self._servers.append(server)
        self.rates_of = self.rates_of or server

    def reload(self) -> None:
        """Reloads the tokens; on failure the old ones stay, and it is logged."""
        try:
            found = self._read()
        except InputError as error:
            _log.error("the tokens stay as they were: %s", error)
            return
        if found is not None and found != self.credentials:
            self.credentials = found
            for server in self._servers:
                server.set_tokens(found)
            _log.info("tokens reloaded: %d", len(found))


def make_guard(config: ServerConfig) -> Guard | None:
    """Guard for a server's settings; None if every call is admitted.

    Raises InputError if the tokens cannot be read.
    """
    credentials = read_credentials(config)
    if credentials is None and config.rate_limit is None:
        return None
    return Guard(credentials, lambda: read_credentials(config))


def read_credentials(config: ServerConfig) -> tuple[Credential, ...] | None:
    """Tokens of the file and the environment, None if neither is set; InputError if unreadable."""
    found: tuple[Credential, ...] = ()
    if config.tokens is not None:
        found = parse_tokens(config.tokens, TOKENS_VARIABLE)
    if config.tokens_file is not None:
        path = Path(config.tokens_file)
        try:
            text = read_regular(path, _MOST_BYTES, follow=True).decode()
            mode = path.stat().st_mode
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"tokens_file {path}: cannot be read: {error}") from error
        if mode & _READABLE_BY_ALL:
            _log.warning("%s: every user of this machine can read the tokens: chmod 600", path)
        found += parse_tokens(text, str(path))
    return found or None
