import pytest

from kernels.gpu.triton_tiles import TileChoice, plan_tiles, row_words
from kernels.row_format import RowFormat


def test_long_bags_and_wide_rows_run_first() -> None:
    plan = plan_tiles(
        RowFormat.INT8, (8, 128, 8, 128), TileChoice(), typical_lengths=(1, 1, 100, 100)
    )
    assert plan.order == (3, 2, 1, 0)
    assert plan.kinds == (1, 1, 1, 1)
    assert plan.wide == (8, 32) and plan.narrow == (32, 2)


def test_rows_wider_than_a_tile_are_shared_by_programs() -> None:
    plan = plan_tiles(RowFormat.FP32, (1024, 100), TileChoice(widest_words=64))
    assert plan.wide[1] == 64
    assert plan.wide_chunks == 16


@pytest.mark.parametrize("batch", [0, 1, 8, 9, 270])
def test_a_launch_has_a_program_for_every_block_of_every_feature(batch: int) -> None:
    plan = plan_tiles(
        RowFormat.INT8, (8, 300, 8, 128), TileChoice(), typical_lengths=(1, 1, 100, 100)
    )
    chunks = -(-row_words(RowFormat.INT8, 300) // plan.wide[1])
    blocks_wide, blocks_narrow = -(-batch // plan.wide[0]), -(-batch // plan.narrow[0])
    assert plan.programs(batch) == (batch + blocks_wide) * chunks + batch + blocks_narrow
