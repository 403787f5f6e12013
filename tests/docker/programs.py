"""Programs of others, run to their end."""

import subprocess
from typing import Any


def output_of(*words: object, **options: Any) -> str:
    """Standard output of a program, which must succeed; `options` are of `subprocess.run`."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run([*map(str, words)], check=False, **(streams | options))
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{(done.stderr or '')[-3000:]}"
    return str(done.stdout)
