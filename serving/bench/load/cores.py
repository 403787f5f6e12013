"""Cores of a measured server and its load."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def split_cpus() -> tuple[set[int], set[int]]:
    """The first core for a server, and the last one for its load; they are the same on one core."""
    cpus = sorted(os.sched_getaffinity(0))
    return {cpus[0]}, {cpus[-1]}


@contextmanager
def one_core() -> Iterator[None]:
    """Keep the calling thread on the server's core, with one intra-op thread, in the context."""
    cpus, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, split_cpus()[0])
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cpus)
