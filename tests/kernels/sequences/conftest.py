from collections.abc import Iterator

import pytest
import torch
from torch.utils import deterministic


@pytest.fixture(autouse=True)
def memory_full_of_nan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes missing writes visible."""
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
