"""Which cores a measured server and its load run on."""

import os


def split_cpus() -> tuple[set[int], set[int]]:
    """The cores of a server, one, and of its load, another where there is one."""
    cpus = sorted(os.sched_getaffinity(0))
    return {cpus[0]}, {cpus[-1]}
