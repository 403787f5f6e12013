import mmap
import statistics
import time

from serving.host.thread_usage import read_usage, usage_between


def test_pages_that_are_touched_for_the_first_time_are_faults() -> None:
    before = read_usage()
    with mmap.mmap(-1, 400 * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
    assert 400 <= usage_between(before, read_usage()).minor_faults < 800


def test_the_work_of_a_millisecond_is_seen() -> None:
    # As getrusage has it, time comes in ticks: a batch would look like waiting.
    def measured() -> float:
        before = read_usage()
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass
        return usage_between(before, read_usage()).cpu_seconds

    found = [measured() for _ in range(20)]
    # The kernel's own work for others may be added to some of them.
    assert min(found) >= 0.001 and statistics.median(found) < 0.002
