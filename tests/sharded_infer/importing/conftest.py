import warnings
from collections.abc import Iterator

import pytest
import torch

from tests.support.torchrec_models import TorchRec, torchrec


@pytest.fixture
def rec() -> Iterator[TorchRec]:
    with torchrec() as parts:
        yield parts


@pytest.fixture
def process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        yield
        torch.distributed.destroy_process_group()


@pytest.fixture
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        yield
