"""How many files and sockets a process may have open."""

import resource


def allow_most_descriptors() -> int:
    """Raises this process's limit of descriptors to what the system allows; returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def most_descriptors() -> int:
    """How many descriptors this process may have now."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
