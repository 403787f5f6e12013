"""Every form of an input and its scores, errors by their codes, and streams."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conformance.clients import Client, infer, refused
from tests.support.servers import MODEL, Ranker, good_inputs

DENSE = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
IDS = np.arange(4)
FORMS: dict[str, dict[str, NDArray[Any]]] = {
    "all of them": good_inputs(4),
    "one id a sample": {"dense": DENSE, "user": IDS, "item": IDS.reshape(4, 1)},
    "several ids": {"dense": DENSE, "item": np.arange(12).reshape(4, 3)},
    "int32": {"dense": DENSE, "user": IDS.astype(np.int32)},
    "a bag": {"dense": DENSE, "item": IDS, "item.lengths": np.array([0, 3, 0, 1], np.int32)},
    "weights": {"dense": DENSE, "category": IDS, "category.weights": np.ones(4, np.float32) / 3},
    "at once": {
        "dense": DENSE,
        "sparse.values": np.arange(20) % 13,
        "sparse.lengths": np.ones((5, 4), np.int32),
    },
    "ranking": {"dense": DENSE[:1], "user": IDS[:1], "item": np.arange(40)},
    "no ids": {"dense": DENSE},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_scores_as_the_opened_version(client: Client, ranker: Ranker, form: str) -> None:
    result = infer(client, MODEL, FORMS[form])
    for name, scores in ranker.predict(FORMS[form]).items():
        assert np.array_equal(result.as_numpy(name), scores)


def test_outputs_may_be_chosen_and_the_request_is_named_in_the_answer(client: Client) -> None:
    result = infer(
        client, MODEL, FORMS["no ids"], outputs=("labels",), request_id="4711", model_version="1"
    )
    assert result.as_numpy("labels").shape == (4, 3) and result.as_numpy("score") is None
    response = client.response(result)
    assert (response["id"], response["model_name"], response["model_version"]) == (
        "4711", MODEL, "1",
    )  # fmt: skip


def test_parameters_are_heeded_or_ignored(client: Client, ranker: Ranker) -> None:
    result = infer(
        client, MODEL, FORMS["no ids"], priority=1, timeout=5_000_000, sequence_id=3,
        parameters={"unknown": "x", "other": 1},
    )  # fmt: skip
    assert np.array_equal(result.as_numpy("score"), ranker.predict(FORMS["no ids"])["score"])


WRONG: dict[str, tuple[str, Callable[[Client], Any]]] = {
    "an unknown input": ("'x'", lambda c: infer(c, MODEL, {**FORMS["no ids"], "x": IDS})),
    "a missing input": ("'dense'", lambda c: infer(c, MODEL, {"user": IDS})),
    "another datatype": ("'user'", lambda c: infer(c, MODEL, {"dense": DENSE, "user": DENSE})),
    "another shape": ("'dense'", lambda c: infer(c, MODEL, {"dense": DENSE[:, :3].copy()})),
    "an id outside": ("'user'", lambda c: infer(c, MODEL, {"dense": DENSE, "user": IDS + 99})),
    "an unknown output": ("'x'", lambda c: infer(c, MODEL, FORMS["no ids"], outputs=("x",))),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_an_invalid_argument_and_says_what(client: Client, case: str) -> None:
    word, ask = WRONG[case]
    refused("INVALID_ARGUMENT", word, client, lambda: ask(client))


REQUESTS = 40


streaming = pytest.mark.parametrize("client", ["grpc", "aio"], indirect=True)


def request(client: Client, number: int, **changed: Any) -> dict[str, Any]:
    arrays = good_inputs(1 + number % 7, seed=number)
    return {
        "model_name": MODEL,
        "inputs": [client.input(name, array) for name, array in arrays.items()],
        "request_id": str(number),
        **changed,
    }


@streaming
def test_each_request_of_a_stream_gets_its_own_scores(client: Client, ranker: Ranker) -> None:
    answers = client.stream(request(client, number) for number in range(REQUESTS))
    assert [error for _, error in answers if error] == []
    assert sorted(int(result.get_response().id) for result, _ in answers) == list(range(REQUESTS))
    for result, _ in answers:
        number = int(result.get_response().id)
        expected = ranker.predict(good_inputs(1 + number % 7, seed=number))
        for name, scores in expected.items():
            assert np.abs(result.as_numpy(name) - scores).max() < 1e-5


@streaming
def test_an_error_is_told_on_the_stream_and_the_others_are_answered(client: Client) -> None:
    wrong = {
        2: {"model_name": "nobody"},
        4: {"inputs": [client.input("dense", np.zeros((1, 3), np.float32))]},
        6: {"model_version": "99"},
    }
    answers = client.stream(request(client, n, **wrong.get(n, {})) for n in range(10))
    assert len(answers) == 10
    assert sorted(int(r.get_response().id) for r, _ in answers if r) == [0, 1, 3, 5, 7, 8, 9]
    words = sorted(str(error.message()) for _, error in answers if error)
    assert len(words) == 3 and all(words)
    assert any("'nobody'" in word for word in words) and any("'99'" in word for word in words)


@streaming
def test_a_request_on_a_stream_may_have_parameters(client: Client, ranker: Ranker) -> None:
    wanted = [client.output("score")]
    answers = client.stream([request(client, 3, outputs=wanted, priority=1, timeout=5_000_000)] * 2)
    for result, error in answers:
        assert error is None
        assert [output.name for output in result.get_response().outputs] == ["score"]
