"""The command, in the tests' own process."""

from tests.serving.conftest import sharded_infer

__all__ = ["sharded_infer"]
