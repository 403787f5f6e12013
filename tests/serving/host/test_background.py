import os
import sys
import threading
import time

from serving.host.background import lower_priority, paced, run_when_idle, yielding_often


def test_only_the_calling_threads_priority_is_lowered() -> None:
    seen = []

    def run() -> None:
        lower_priority()
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen[0] > before
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_only_the_calling_thread_runs_on_idle_cores_alone() -> None:
    seen = []

    def run() -> None:
        run_when_idle()
        seen.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [os.SCHED_IDLE]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_the_switch_interval_is_short_meanwhile_and_as_before_afterwards() -> None:
    before = sys.getswitchinterval()
    with yielding_often():
        assert sys.getswitchinterval() <= 0.001
    assert sys.getswitchinterval() == before


def test_a_paced_step_is_followed_by_a_pause_as_long() -> None:
    told = []
    progress = paced(lambda *step: told.append(step))
    # The steps' own work.
    time.sleep(0.02)
    began = time.monotonic()
    progress("verifying", 1, 2)
    assert time.monotonic() - began > 0.015
    assert told == [("verifying", 1, 2)]
