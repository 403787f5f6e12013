import torch

from kernels.backends.mean_pooling import divide_by_lengths


def test_each_feature_is_divided_by_its_own_lengths() -> None:
    pooled = torch.tensor([[8.0, 8.0, 6.0], [4.0, 2.0, 5.0]])
    divide_by_lengths(pooled, torch.tensor([[4, 2], [2, 1]]), torch.tensor([2, 1]))
    assert pooled.tolist() == [[2.0, 2.0, 3.0], [2.0, 1.0, 5.0]]


def test_an_empty_bag_stays_as_it_is() -> None:
    pooled = torch.tensor([[0.0, 7.0]])
    divide_by_lengths(pooled, torch.tensor([[0]]), torch.tensor([2]))
    assert pooled.tolist() == [[0.0, 7.0]]
