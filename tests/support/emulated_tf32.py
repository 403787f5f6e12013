"""TF32 on a device without it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.fx import GraphModule

from sharded_infer.engines.device.tower import device_tower
from sharded_infer.towers.lowering.tf32 import emulate_tf32
from sharded_infer.towers.program.program import open_program


@contextmanager
def emulated_tf32() -> Iterator[None]:
    """Inside, a `DeviceTower` rounds factors of its inner products as TF32 does."""

    def opened(*arguments: Any) -> tuple[GraphModule, int]:
        program, samples = open_program(*arguments)
        emulate_tf32(program)
        return program, samples

    with mock.patch.object(device_tower, "open_program", opened):
        yield
