"""The file of a version's signatures, `<model>/signatures/<SHA-256 of manifest.json>.json`.

{"format_version": 1, "signatures": [{"key_id": "<16 digits>", "signature": "<128 digits>"}]}
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sharded_infer.errors import SignatureError

SIGNATURES = "signatures"
MAX_SIGNATURES_BYTES = 64 * 2**10  # of some 300 keys
_ENDING = ".json"
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, config=_STRICT)
class _Signature:
    key_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


@dataclass(frozen=True, slots=True, config=_STRICT)
class _Signatures:
    format_version: Literal[1]
    signatures: Annotated[tuple[_Signature, ...], Field(min_length=1)]


_ADAPTER = TypeAdapter(_Signatures)


def signatures_name(text: bytes) -> str:
    """The file's name in the model's folder, for a manifest as stored."""
    return f"{SIGNATURES}/{hashlib.sha256(text).hexdigest()}{_ENDING}"


def dump_signatures(signatures: Mapping[str, bytes]) -> bytes:
    """The file's content; signatures are 64 bytes each, by key id."""
    listed = [{"key_id": key_id, "signature": s.hex()} for key_id, s in sorted(signatures.items())]
    return json.dumps({"format_version": 1, "signatures": listed}, indent=1).encode() + b"\n"


def parse_signatures(content: bytes, where: str) -> dict[str, bytes]:
    """Signatures of a file, by key id; SignatureError unless written by `dump_signatures`."""
    try:
        listed = _ADAPTER.validate_json(content, strict=True).signatures
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(map(str, problem["loc"])) or "the document"
        raise SignatureError(
            f"{where}: {place}: {problem['msg']}, got {str(problem['input'])[:80]!r}"
        ) from error
    found: dict[str, bytes] = {}
    for one in listed:
        if one.key_id in found:
            raise SignatureError(
                f"{where}: key {one.key_id}: expected one signature by each key, got two"
            )
        found[one.key_id] = bytes.fromhex(one.signature)
    return found
