"""Memory that CUDA graphs keep for their replays is not free."""

from sharded_infer.engines.device.runtime.cuda_runtime import graph_bytes


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
