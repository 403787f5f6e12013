import gc

import pytest
import torch

from sharded_infer.engines.device.runtime.cuda_runtime import StreamPool, graph_bytes
from sharded_infer.errors import CapacityError

DEVICE_MODELS = tuple(torch.device("cuda", number) for number in range(2))


def _segment(device: int, pool: tuple[int, int], total: int, allocated: int) -> dict[str, object]:
    """As `torch.cuda.memory_snapshot` has it."""
    return {
        "device": device,
        "segment_pool_id": pool,
        "total_size": total,
        "allocated_size": allocated,
    }


def test_what_no_tensor_holds_of_graph_pools_is_counted_and_of_nothing_else() -> None:
    segments = [
        _segment(0, (0, 0), 1000, 200),  # free for everybody
        _segment(0, (0, 1), 500, 100),
        _segment(0, (0, 2), 30, 30),
        _segment(1, (0, 1), 7000, 0),
    ]
    assert graph_bytes(segments, 0) == 400
    assert graph_bytes(segments, 1) == 7000
    assert graph_bytes([], 0) == 0


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
