"""Bearer tokens, their scopes, and the scope that each RPC needs.

Only the SHA-256 of a token is kept.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from sharded_infer.errors import InputError

# Shorter tokens can be guessed.
_LEAST_CHARACTERS = 16


class Access(StrEnum):
    """Access that a call needs; the last three are scopes of tokens."""

    OPEN = "open"
    TOKEN = "any token"  # noqa: S105 - no password
    PREDICT = "predict"
    ADMIN = "admin"
    METRICS = "metrics"


SCOPES = (Access.PREDICT, Access.ADMIN, Access.METRICS)
_INFERENCE = "inference.GRPCInferenceService"
_REFLECTION = "ServerReflectionInfo"

# Access that each RPC needs; others need the scope admin.
RPC_ACCESS = {
    # Probes have no tokens, and these reveal nothing about the models.
    "/grpc.health.v1.Health/Check": Access.OPEN,
    "/grpc.health.v1.Health/Watch": Access.OPEN,
    f"/{_INFERENCE}/ServerLive": Access.OPEN,
    f"/{_INFERENCE}/ServerReady": Access.OPEN,
    f"/{_INFERENCE}/ServerMetadata": Access.TOKEN,
    f"/{_INFERENCE}/ModelReady": Access.TOKEN,
    f"/{_INFERENCE}/ModelMetadata": Access.TOKEN,
    f"/{_INFERENCE}/ModelConfig": Access.TOKEN,
    f"/{_INFERENCE}/RepositoryIndex": Access.TOKEN,
    f"/grpc.reflection.v1alpha.ServerReflection/{_REFLECTION}": Access.TOKEN,
    f"/{_INFERENCE}/ModelInfer": Access.PREDICT,
    f"/{_INFERENCE}/ModelStreamInfer": Access.PREDICT,
    "/sharded_infer.v1.Predictor/Predict": Access.PREDICT,
    "/sharded_infer.v1.Predictor/Prepare": Access.PREDICT,
    # Fronts have a token of their own.
    "/sharded_infer.v1.ShardHost/Describe": Access.PREDICT,
    "/sharded_infer.v1.ShardHost/Lookup": Access.PREDICT,
    f"/{_INFERENCE}/ModelStatistics": Access.METRICS,
    # The default, but listed for completeness.
    f"/{_INFERENCE}/RepositoryModelLoad": Access.ADMIN,
    f"/{_INFERENCE}/RepositoryModelUnload": Access.ADMIN,
    f"/{_INFERENCE}/SystemSharedMemoryStatus": Access.ADMIN,
    f"/{_INFERENCE}/SystemSharedMemoryRegister": Access.ADMIN,
    f"/{_INFERENCE}/SystemSharedMemoryUnregister": Access.ADMIN,
    f"/{_INFERENCE}/TraceSetting": Access.ADMIN,
    f"/{_INFERENCE}/LogSettings": Access.ADMIN,
}


@dataclass(frozen=True, slots=True)
class Credential:
    """A known token, by its SHA-256.

    `name` is for logs and limits, by default the digest's first eight characters.
    """

    name: str
    digest: bytes
    scopes: frozenset[Access]


def parse_tokens(text: str, source: str) -> tuple[Credential, ...]:
    """Parses lines of `TOKEN SCOPE,SCOPE [# NAME]`; error messages never contain a token.

    Empty lines and those that begin with # are ignored. In a single line, semicolons separate
    entries.

    Raises:
        InputError: an invalid line, a token that is short or occurs twice, or no token.
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


def access_of(path: str) -> Access:
    """Access that a call of `/service/Method` needs."""
    return RPC_ACCESS.get(path, Access.ADMIN)
