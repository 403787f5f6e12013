"""Scripts in separate processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]


def run_alone(script: str) -> Any:
    """JSON output of a script in a fresh process: this one has threads, and must not fork."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
