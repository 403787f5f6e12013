import gc

import pytest
import torch

from sharded_infer.engines.device.runtime.cuda_streams import StreamPool
from sharded_infer.errors import CapacityError

DEVICE_MODELS = tuple(torch.device("cuda", number) for number in range(2))


class Owner:
    """Something that streams are lent to."""


def test_no_stream_is_lent_twice_and_all_come_back() -> None:
    pool = StreamPool(lambda device: object(), most=4)
    first, second = Owner(), Owner()
    streams = [pool.take(DEVICE_MODELS[0], owner) for owner in (first, first, second, second)]
    assert len(set(streams)) == 4
    with pytest.raises(CapacityError, match="cuda:0: its 4 streams are taken by other versions"):
        pool.take(DEVICE_MODELS[0], Owner())
    del second
    gc.collect()
    third = Owner()
    assert {pool.take(DEVICE_MODELS[0], third) for _ in range(2)} == set(streams[2:])


def test_devices_have_streams_of_their_own() -> None:
    pool = StreamPool(lambda device: (device, object()), most=1)
    owner = Owner()
    assert [pool.take(gpu, owner)[0] for gpu in DEVICE_MODELS] == list(DEVICE_MODELS)
