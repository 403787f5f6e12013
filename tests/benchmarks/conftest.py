"""`python -m benchmarks`, run in the test's process."""

from functools import partial

import pytest

from benchmarks.__main__ import main
from tests.support.servers import Command


@pytest.fixture
def benchmark(sharded_infer: Command) -> Command:
    return partial(sharded_infer, main=main)
