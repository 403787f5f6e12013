"""What a stage of the check is given: a device, and a report to add to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """Inputs of a stage on a GPU, or a CPU in a dry run, with the report of previous stages.

    `has_time` if another measurement may begin; saved figures replace those of the same name.
    """

    device: torch.device
    seed: int
    report: Report
    has_time: Callable[[], bool]
    save: Callable[[Report], None]

    @property
    def is_dry(self) -> bool:
        return self.device.type == "cpu"
