"""Lets calls in, or says why not: tokens, scopes and rates, whatever transport brought them."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from urllib.parse import unquote

from serving.access import Access, Credential, bearer_token, find_credential, parse_tokens
from serving.config import ServerConfig
from serving.rate_limit import RateLimit
from serving.refusals import PermissionDeniedError, RateLimitError, UnauthenticatedError
from serving.setting_sources import TOKENS_VARIABLE
from sharded_infer.errors import InputError
from sharded_infer.regular_file import read_regular

# Of a file of tokens.
_MOST_BYTES = 16 * 2**20

_log = logging.getLogger("sharded_infer")
_READABLE_BY_ALL = 0o004


class Guard:
    """The door of one process. Any thread may call."""

    def __init__(
        self,
        credentials: Sequence[Credential] | None,
        rates: RateLimit | None,
        read: Callable[[], Sequence[Credential] | None] = lambda: None,
        *,
        count_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Keeps who may call.

        Args:
            credentials: the tokens that are known; None: calls need none.
            rates: how often a client may call; None: as often as it likes.
            read: reads the tokens again.
            count_refused: told the status code of each predict call that is not let in.
        """
        self._credentials = credentials
        self._rates = rates
        self._read = read
        self.count_refused = count_refused

    def admit(
        self, access: Access, authorization: str | None, peer: str, *, now: float | None = None
    ) -> str:
        """Lets a call in.

        Args:
            access: what it needs.
            authorization: its header of that name; None: it has none.
            peer: the client's address, as `address:port` or gRPC has it; empty: not known, and no
                rate is held.
            now: seconds on the monotonic clock; None: it is read.

        Returns:
            The client's name: its token's, or its address.

        Raises:
            UnauthenticatedError: it needs a token, and has none that is known.
            PermissionDeniedError: its token has not the scope.
            RateLimitError: its client has called too often.
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
        if self._rates is not None and client:
            seconds = self._rates.take(client, monotonic() if now is None else now)
            if seconds:
                raise RateLimitError(
                    f"too many calls: expected fewer from {client!r}; again in {seconds:.3g} s",
                    retry_seconds=seconds,
                )
        return client

    def reload(self) -> None:
        """Reads the tokens again; where that fails, those before hold, and the log says so."""
        try:
            found = self._read()
        except InputError as error:
            _log.error("the tokens stay as they were: %s", error)
            return
        if found is not None and found != self._credentials:
            self._credentials = found
            _log.info("tokens read again: %d", len(found))

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
    """A peer's address, the same by whatever transport it came."""
    address = unquote(peer.removeprefix("ipv4:").removeprefix("ipv6:")).rpartition(":")[0]
    return address.strip("[]")


def make_guard(
    config: ServerConfig, count_refused: Callable[[str], None] = lambda _: None
) -> Guard | None:
    """The door that a server's settings ask for; None: everybody is let in.

    Args:
        config: the server's settings.
        count_refused: told the status code of each predict call that is not let in.

    Raises:
        InputError: the tokens cannot be read.
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
    """The tokens of the file and the environment; None: neither is said.

    Raises:
        InputError: they cannot be read.
    """
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
