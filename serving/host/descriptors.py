"""Limits of open files and sockets."""

import resource


def allow_most_descriptors() -> int:
    """Raise this process's limit of descriptors to the system's maximum, and return it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def most_descriptors() -> int:
    """Current limit of descriptors of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
