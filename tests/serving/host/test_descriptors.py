import resource

from serving.host.descriptors import allow_most_descriptors, most_descriptors


def test_the_soft_limit_becomes_the_hard_one() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        assert most_descriptors() == soft - 1
        assert allow_most_descriptors() == most_descriptors() == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
