"""A version's manifest, changed by hand: it says of itself that it is sound."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharded_infer.artifacts.manifest import MANIFEST_NAME, with_checksum

Document = dict[str, Any]


def edit_manifest(version: Path, edit: Callable[[Document], object]) -> None:
    """Changes the manifest's JSON, and its checksum with it."""
    path = version / MANIFEST_NAME
    document = json.loads(path.read_bytes())
    document.pop("sha256", None)
    edit(document)
    path.write_bytes(with_checksum(json.dumps(document).encode()))
