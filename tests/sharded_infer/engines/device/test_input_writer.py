from dataclasses import replace

import numpy as np
import pytest
import torch

from sharded_infer.engines.device.input_layout import InputShape, input_bytes, input_views
from sharded_infer.engines.device.input_writer import HostArrays, InputWriter
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput

# Positions of features, by group, and of those that the device needs.
CASES = {
    "one group": (((0, 1, 2, 3),), (0, 1, 2, 3)),
    "some of a group": (((0, 1, 2, 3),), (1, 3)),
    "groups in turn": (((0, 2), (1, 3)), (0, 1, 2, 3)),
    "none of a group": (((0, 2), (1, 3)), (0, 2)),
    "one that did not come": (((3, 0),), (0, 1, 3)),
    "nothing that is needed": (((1,),), (0, 2)),
    "no features": (((0, 1),), ()),
}
BUCKET = 8


def batch_of(groups: tuple[tuple[int, ...], ...], size: int, *, empty: bool = False) -> ModelInput:
    """The last of several groups has one bag for all samples."""
    generator = np.random.default_rng(size)
    made = []
    for number, features in enumerate(groups):
        bags = 1 if number and number == len(groups) - 1 else size
        lengths = generator.integers(0, 1 if empty else 4, (len(features), bags))
        ids = generator.integers(0, 2**31 - 1, int(lengths.sum()))
        made.append(JaggedBatch(features, ids, lengths))
    return ModelInput(size, tuple(made), (), ids_checked=True)


def written(
    batch: ModelInput, features: tuple[int, ...], dtype: torch.dtype
) -> tuple[int, list[int], list[int]]:
    """Number of ids, offsets, and ids; unwritten places are -1."""
    shape = InputShape(len(features), dtype, False, 4, 0, ())
    memory = torch.full((input_bytes(shape, BUCKET, 64),), -1, dtype=torch.int8).view(torch.uint8)
    arrays = HostArrays(input_views(shape, memory, BUCKET))
    writer = InputWriter(features, columns=np.arange(5), split_means=())
    count = writer.write(batch, arrays, BUCKET)
    assert (arrays.values[count:] == -1).all()
    return count, arrays.offsets.tolist(), arrays.values[:count].tolist()


def expected(batch: ModelInput, features: tuple[int, ...]) -> tuple[int, list[int], list[int]]:
    offsets, ids = [0], []
    for feature in features:
        bags: list[list[int]] = [[] for _ in range(BUCKET)]
        for group in batch.groups:
            if feature in group.features:
                row = group.features.index(feature)
                first = int(group.lengths[:row].sum())
                for bag, length in enumerate(group.lengths[row].tolist()):
                    bags[bag] = group.values[first : first + length].tolist()
                    first += length
        for bag in bags:
            ids += bag
            offsets.append(len(ids))
    return len(ids), offsets, ids


@pytest.mark.parametrize("weighted", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("case", CASES)
def test_every_id_has_its_weight(case: str, weighted: tuple[int, ...]) -> None:
    groups, features = CASES[case]
    batch = batch_of(groups, 5)
    # An id's weight says which it is; a group without weights has ones.
    batch = replace(
        batch,
        groups=tuple(
            replace(group, weights=(group.values % 1000).astype(np.float32))
            if number in weighted
            else group
            for number, group in enumerate(batch.groups)
        ),
    )
    of_group = {f: n for n, group in enumerate(groups) for f in group}
    arrays, count = write_weighted(batch, features, ids=63)
    owners = np.repeat(features, np.diff(arrays.offsets[::BUCKET]))
    expected = [
        float(value % 1000) if of_group[owner] in weighted else 1.0
        for owner, value in zip(owners.tolist(), arrays.values[:count].tolist(), strict=True)
    ]
    assert arrays.weights[:count].tolist() == expected


def write_weighted(
    batch: ModelInput, features: tuple[int, ...], *, ids: int
) -> tuple[HostArrays, int]:
    """A batch written where there is room for `ids`, and its number of ids."""
    shape = InputShape(len(features), torch.int64, False, 4, 0, ())
    memory = torch.zeros(input_bytes(shape, BUCKET, ids), dtype=torch.uint8)
    arrays = HostArrays(input_views(shape, memory, BUCKET))
    assert len(arrays.values) == len(arrays.weights) >= ids
    assert arrays.views.weights_begin % 16 == 0
    writer = InputWriter(features, columns=np.arange(5), split_means=())
    count = writer.write(batch, arrays, BUCKET, weighted=True)
    return arrays, count


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("size", [1, 5, BUCKET])
@pytest.mark.parametrize("case", CASES)
def test_every_bag_is_where_it_is_said_to_be(case: str, size: int, dtype: torch.dtype) -> None:
    groups, features = CASES[case]
    for empty in (False, True):
        batch = batch_of(groups, size, empty=empty)
        assert written(batch, features, dtype) == expected(batch, features)


def test_arrays_that_are_parts_of_others_are_read_right() -> None:
    lengths = np.arange(24).reshape(4, 6)[:, ::3] % 3
    ids = np.arange(200)[::2][: int(lengths.sum())]
    batch = ModelInput(2, (JaggedBatch((0, 1, 2, 3), ids, lengths),), (), ids_checked=True)
    for features in ((0, 1, 2, 3), (2,)):
        assert written(batch, features, torch.int32) == expected(batch, features)
