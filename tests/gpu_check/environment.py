"""What the check runs on."""

import platform

import torch
import triton

from tests.gpu_check.stage import Report, Stage


def run(stage: Stage) -> Report:
    """Versions, and the device's name and sizes."""
    found: Report = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }
    if not stage.is_dry:
        properties = torch.cuda.get_device_properties(stage.device)
        found |= {
            "card": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "cache_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory,
        }
    return found
