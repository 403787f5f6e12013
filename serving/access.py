"""Who may do what: bearer tokens and their scopes, apart from any transport.

A token is kept as its SHA-256 alone. All digests are compared, each in constant time, whichever
fits, so that the time says nothing of how near a guess is.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sharded_infer.errors import InputError

# Shorter tokens are guessed, not stolen.
_LEAST_CHARACTERS = 16


class Access(StrEnum):
    """What a call needs; the last three are scopes of tokens."""

    OPEN = "open"
    TOKEN = "any token"  # noqa: S105 - no password
    PREDICT = "predict"
    ADMIN = "admin"
    METRICS = "metrics"


SCOPES = (Access.PREDICT, Access.ADMIN, Access.METRICS)


@dataclass(frozen=True, slots=True)
class Credential:
    """A token that is known.

    Attributes:
        name: for logs and limits; without one, the digest's first eight characters.
        digest: SHA-256 of the token.
        scopes: what it may.
    """

    name: str
    digest: bytes
    scopes: frozenset[Access]


def find_credential(known: Sequence[Credential], token: str) -> Credential | None:
    """Whose token it is; None: nobody's."""
    digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
    found = None
    for credential in known:
        if hmac.compare_digest(credential.digest, digest):
            found = credential
    return found


def bearer_token(authorization: str) -> str | None:
    """The token of an `authorization` header; None: it has none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def parse_tokens(text: str, source: str) -> tuple[Credential, ...]:
    """Reads lines of `TOKEN SCOPE,SCOPE [# NAME]`; words about them never hold a token.

    Args:
        text: the lines; empty ones and those that begin with # say nothing. In one line, a
            semicolon ends each.
        source: the file or variable they come from.

    Raises:
        InputError: a line that is none, a token that is short or stands twice, or no token.
    """
    found: dict[bytes, Credential] = {}
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        words, _, name = line.partition("#")
        if not words.strip():
            continue
        where, parts = f"{source} line {number}", words.split()
        if len(parts) != 2:
            raise InputError(f"{where}: expected TOKEN SCOPE,SCOPE, got {len(parts)} words")
        token, scopes = parts
        if len(token) < _LEAST_CHARACTERS:
            raise InputError(
                f"{where}: expected a token of at least {_LEAST_CHARACTERS} characters, "
                f"got {len(token)}"
            )
        digest = hashlib.sha256(token.encode()).digest()
        if digest in found:
            raise InputError(f"{where}: the token of {found[digest].name} stands there again")
        found[digest] = Credential(
            name.strip() or digest.hex()[:8], digest, _scopes(scopes.split(","), where)
        )
    if not found:
        raise InputError(f"{source}: expected lines of TOKEN SCOPE,SCOPE, got none")
    return tuple(found.values())


def _scopes(names: list[str], where: str) -> frozenset[Access]:
    known = {scope.value: scope for scope in SCOPES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"{where}: expected scopes of {', '.join(known)}, got {unknown[0]!r}")
    return frozenset(known[name] for name in names)
