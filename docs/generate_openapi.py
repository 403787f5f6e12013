"""Writes docs/openapi.json from the table of routes; `--check` only says whether it is stale."""

import json
import sys
from pathlib import Path

from serving.rest.openapi import openapi_document

TARGET = Path(__file__).parent / "openapi.json"


def main() -> int:
    """Writes the file, or compares it."""
    text = json.dumps(openapi_document(), indent=1) + "\n"
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
        return 0
    return 0 if TARGET.exists() and TARGET.read_text() == text else 1


if __name__ == "__main__":
    sys.exit(main())
