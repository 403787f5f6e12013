"""Freed memory stays mapped: measured in a process of its own, since it is told once for all."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from serving.freed_memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = keep_freed_memory() if sys.argv[1] == "kept" else None
for _ in range(3):
    torch.ones(4_000_000), torch.ones(1_000_000)
before = faults()
for _ in range(20):
    # As much as some requests hold at once, freed in another order than it was asked for.
    held = [torch.ones(1_000_000) for _ in range(4)]
    held.reverse()
    del held
print(kept, faults() - before)
"""


def told(how: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_memory_that_was_freed_is_not_mapped_again() -> None:
    kept, faults = told("kept")
    # 20 rounds of 16 MB are 78,000 pages of 4 KiB; the first round may have to map its own.
    assert kept == "True" and faults < 6_000
    assert told("as it is")[1] > 5 * faults
