"""Freed memory stays mapped: measured in another process, since the setting is permanent."""

import json
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from serving.host.malloc import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = keep_freed_memory() if sys.argv[1] == "kept" else None
def requests(count):
    for _ in range(count):
        # As much as some hold at once, freed in another order than it was asked for.
        held = [torch.ones(25_000) for _ in range(640)]
        held.reverse()
        del held

requests(3)
before = faults()
requests(20)
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
    # 20 rounds of 64 MB are 312,000 pages of 4 KiB; one round may have to map its own.
    assert kept == "True" and faults < 30_000
    assert told("as it is")[1] > 60_000


THREADS = """
import sys, threading, torch
from serving.host.malloc import FreedMemory, anonymous_bytes, keep_freed_memory

keep_freed_memory()
before = anonymous_bytes()

def work():
    # Blocks that are kept, 32 MB of them at once, on one thread after another.
    held = [torch.ones(250_000) for _ in range(32)]

stay = threading.Event()
def thread(done):
    work()
    done.set()
    stay.wait()

for _ in range(12):
    done = threading.Event()
    threading.Thread(target=thread, args=(done,), daemon=True).start()
    done.wait()
after = anonymous_bytes()
freed = FreedMemory(before)
now = freed._since
looks = [freed.look(now + 1.0, freed._worked)]
looks.append(freed.look(now + 3.0, freed._worked + 1.0))
looks.append(freed.look(now + 6.0, freed._worked))
given = anonymous_bytes()
looks.append(freed.look(now + 9.0, freed._worked))
print(after - before, given - before, looks)
"""


@pytest.fixture(scope="module")
def threads() -> tuple[int, int, list[bool]]:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True
    )
    after, given, looks = done.stdout.split(maxsplit=2)
    return int(after), int(given), json.loads(looks.lower())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_threads_that_work_in_turn_keep_what_one_of_them_took(
    threads: tuple[int, int, list[bool]],
) -> None:
    # Each of twelve would keep 32 MB in an arena of its own. In one they leave some between them.
    assert 30e6 < threads[0] < 12 * 32e6 / 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_what_a_peak_left_goes_back_once_the_process_is_idle(
    threads: tuple[int, int, list[bool]],
) -> None:
    _, given, looks = threads
    # Too soon, not idle, given back, and nothing more to give.
    assert looks == [False, False, True, False] and given < 16e6
