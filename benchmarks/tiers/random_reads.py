"""What a disk reads at random, as fio measures it."""

import json
import shutil
import subprocess
from pathlib import Path

from sharded_infer.errors import InputError


def random_reads(path: Path, depth: int, seconds: int) -> float | None:
    """Direct reads of 4 KiB a second, at random places of a file; None: fio is not installed.

    Args:
        depth: reads that are in progress at once.
    """
    program = shutil.which("fio")
    if program is None:
        return None
    options = {
        "name": "random",
        "filename": path,
        "rw": "randread",
        "bs": "4k",
        "direct": 1,
        "ioengine": "libaio",
        "iodepth": depth,
        "runtime": seconds,
        "output-format": "json",
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run(  # noqa: S603 - fio, on our own file
        [program, "--readonly", "--time_based", "--norandommap", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise InputError(f"bench tiers: fio failed: {done.stderr.strip()[-500:]}")
    return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])
