"""Admits or refuses calls by tokens, scopes and rates, for every transport."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from urllib.parse import unquote

from serving.config.server_config import ServerConfig
from serving.config.setting_sources import TOKENS_VARIABLE
from serving.errors import PermissionDeniedError, RateLimitError, UnauthenticatedError
from serving.security.access import Access, Credential, bearer_token, find_credential, parse_tokens
from serving.security.rate_limit import RateLimit
from sharded_infer.errors import InputError
from sharded_infer.files.regular_file import read_regular

# Of a token file.
_MOST_BYTES = 16 * 2**20

_log = logging.getLogger("sharded_infer")
_READABLE_BY_ALL = 0o004


class Guard:
    """Admission of calls in one process. Thread-safe."""

    def __init__(
        self,
        credentials: Sequence[Credential] | None,
        rates: RateLimit | None,
        read: Callable[[], Sequence[Credential] | None] = lambda: None,
        *,
        count_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Stores the tokens and the rates; None means no check of them.

        Args:
            read: reloads the tokens.
            count_refused: called with the status code of each refused predict call.
        """
        self._credentials = credentials
        self._read = read
        self.count_refused = count_refused
        self._take: Callable[[str, float], float] | None = None if rates is None else rates.take
        self._listeners: list[Callable[[Sequence[Credential] | None], None]] = []

    def on_tokens(self, listener: Callable[[Sequence[Credential] | None], None]) -> None:
        """Calls `listener` with the known tokens, now and whenever they are reloaded."""
        self._listeners.append(listener)
        listener(self._credentials)

    def admit(
        self, access: Access, authorization: str | None, peer: str, *, now: float | None = None
    ) -> str:
        """Admits a call and returns its client's name: its token's, or its address.

        Args:
            authorization: the call's header, or None.
            peer: the client's address, as `address:port` or in gRPC's form; empty: unknown, and no
                rate applies.
            now: seconds on the monotonic clock; None reads it.

        Raises:
            UnauthenticatedError: the call needs a known token and has none.
            PermissionDeniedError: its token lacks the scope.
            RateLimitError: its client exceeds the rate.
        """
        if access is Access.OPEN:
            return ""
        client = _address(peer)
        if self._credentials is not None:
            credential = self._credential(authorization)
            if access is not Access.TOKEN and access not in credential.scopes:
                raise PermissionDeniedError(
                    f"the token {credential.name!r} has not the scope {access.value!r}"
                )
            client = f"token {credential.name}"
        if self._take is not None and client:
            seconds = self._take(client, monotonic() if now is None else now)
            if seconds:
                raise RateLimitError(
                    f"too many calls: expected fewer from {client!r}; again in {seconds:.3g} s",
                    retry_seconds=seconds,
                )
        return client

    def share_rates(self, take: Callable[[str, float], float]) -> None:
        """Counts calls with those of a transport, by its `RateLimit.take`."""
        if self._take is not None:
            self._take = take

    def reload(self) -> None:
        """Reloads the tokens; on failure the old ones stay, and it is logged."""
        try:
            found = self._read()
        except InputError as error:
            _log.error("the tokens stay as they were: %s", error)
            return
        if found is not None and found != self._credentials:
            self._credentials = found
            for listener in self._listeners:
                listener(found)
            _log.info("tokens reloaded: %d", len(found))

    def _credential(self, authorization: str | None) -> Credential:
        if authorization is None:
            raise UnauthenticatedError("expected the header authorization: Bearer TOKEN, got none")
        token = bearer_token(authorization)
        found = None if token is None else find_credential(self._credentials or (), token)
        if found is None:
            raise UnauthenticatedError(
                "expected the header authorization: Bearer TOKEN with a known token, got another"
            )
        return found


def _address(peer: str) -> str:
    """A peer's address in the same form for every transport."""
    address = unquote(peer.removeprefix("ipv4:").removeprefix("ipv6:")).rpartition(":")[0]
    return address.strip("[]")


def make_guard(
    config: ServerConfig, count_refused: Callable[[str], None] = lambda _: None
) -> Guard | None:
    """Guard for a server's settings; None if every call is admitted.

    Raises InputError if the tokens cannot be read.
    """
    rates = None
    if config.rate_limit is not None:
        burst = config.rate_burst or max(1.0, config.rate_limit)
        rates = RateLimit(config.rate_limit, burst)
    credentials = read_credentials(config)
    if credentials is None and rates is None:
        return None
    return Guard(credentials, rates, lambda: read_credentials(config), count_refused=count_refused)


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
