"""Malformed requests to a model whose features have several tables, padding and requirements."""

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.end_to_end.test_shared_features import ITEMS, USERS, Trained, infer, trained
from tests.support.servers import RunningServer, running_server

__all__ = ["trained"]

BATCH = 2
GOOD: dict[str, NDArray[Any]] = {
    "age": np.ones((BATCH, 1), np.float32),
    "user": np.array([3, 4]),
    "item": np.array([5, 6]),
    "genres": np.array([0, 2, 0]),
    "genres.lengths": np.array([2, 1], np.int32),
}
AT_ONCE: dict[str, NDArray[Any]] = {
    "age": GOOD["age"],
    "sparse.values": np.array([3, 4, 5, 6, 0, 2, 0]),
    "sparse.lengths": np.array([[1, 1], [1, 1], [2, 1]], np.int32),
}
LONG = 2**62


def at_once(**changed: object) -> dict[str, NDArray[Any]]:
    return AT_ONCE | {f"sparse.{name}": np.asarray(value) for name, value in changed.items()}


CASES: dict[str, tuple[dict[str, NDArray[Any]], str]] = {
    "an id outside both tables": (
        GOOD | {"user": np.array([3, USERS])},
        f"feature 'user', sample 1: id {USERS} is outside table 'user_gmf'",
    ),
    "an id that one table would wrap and another refuses": (
        GOOD | {"item": np.array([ITEMS, 1])},
        f"feature 'item', sample 0: id {ITEMS} is outside table 'item_gmf'",
    ),
    "an id below 0 beside padding": (
        GOOD | {"genres": np.array([0, -1, 0])},
        "feature 'genres', sample 0: id -1 is outside table 'genre'",
    ),
    "a required feature under a table's name": (
        {name: array for name, array in GOOD.items() if name != "item"}
        | {"item_mlp": GOOD["item"]},
        "'item_mlp' is not one of the model's",
    ),
    "lengths of a required feature without its ids": (
        {name: array for name, array in GOOD.items() if name != "item"}
        | {"item.lengths": np.array([0, 0])},
        "'item.lengths' came without 'item'",
    ),
    "lengths for each table": (
        at_once(lengths=np.ones((7, BATCH), np.int64), values=np.ones(14, np.int64)),
        r"expected INT32 or INT64 [3, B], got [7, 2]",
    ),
    "too few ids for the lengths": (at_once(values=[3, 4, 5, 6, 0]), "sum to 7, but 5 ids came"),
    "ids that no length has": (at_once(values=np.zeros(9, np.int64)), "sum to 7, but 9 ids came"),
    "lengths below 0": (at_once(lengths=[[1, 1], [1, -1], [2, 3]]), "a length of -1"),
    "lengths that wrap around to the right sum": (
        at_once(lengths=[[LONG, LONG], [LONG, LONG], [7, 0]]),
        f"a length of {LONG}, but 7 ids came",
    ),
    "weights for each table": (
        at_once(weights=np.ones(14, np.float32)),
        "expected FP32 [7] like its ids, got [14]",
    ),
    "infinity among the weights of a feature of two tables": (
        GOOD | {"item.weights": np.array([1, np.inf], np.float32)},
        "weights of 'item': expected finite numbers",
    ),
}


@pytest.fixture(scope="module")
def target(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("attacked") / "log"
    with running_server(trained.repository, log) as server:
        yield server


@pytest.mark.parametrize("attack", CASES)
def test_it_is_refused_in_words_and_harms_nobody_after_it(
    target: RunningServer, attack: str
) -> None:
    inputs, words = CASES[attack]
    with pytest.raises(grpc.RpcError) as refusal:
        infer(target, inputs)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in refusal.value.details()
    assert np.array_equal(infer(target, GOOD), infer(target, AT_ONCE))
