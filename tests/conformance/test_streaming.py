"""ModelStreamInfer as NVIDIA's clients use it."""

from typing import Any

import numpy as np
import pytest

from tests.conformance.clients import Client
from tests.support.servers import MODEL, Ranker, good_inputs

REQUESTS = 40


@pytest.fixture(autouse=True)
def _streams(client: Client) -> None:
    if not client.streams:
        pytest.skip("HTTP has no streams")


def request(client: Client, number: int, **changed: Any) -> dict[str, Any]:
    """A request of a stream, of another size and content for each number."""
    arrays = good_inputs(1 + number % 7, seed=number)
    return {
        "model_name": MODEL,
        "inputs": [client.input(name, array) for name, array in arrays.items()],
        "request_id": str(number),
        **changed,
    }


def test_each_request_of_a_stream_is_answered_with_its_own_scores(
    client: Client, ranker: Ranker
) -> None:
    answers = client.stream(request(client, number) for number in range(REQUESTS))
    assert [error for _, error in answers if error] == []
    assert sorted(int(result.get_response().id) for result, _ in answers) == list(range(REQUESTS))
    for result, _ in answers:
        number = int(result.get_response().id)
        expected = ranker.predict(good_inputs(1 + number % 7, seed=number))
        for name, scores in expected.items():
            assert np.abs(result.as_numpy(name) - scores).max() < 1e-5


def test_every_answer_is_the_last_of_its_request(client: Client) -> None:
    answers = client.stream([request(client, 1)])
    response = answers[0][0].get_response()
    assert response.parameters["triton_final_response"].bool_param
    assert (response.model_name, response.model_version) == (MODEL, "1")


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


def test_a_request_on_a_stream_may_have_parameters(client: Client, ranker: Ranker) -> None:
    outputs = [client.output("score")]
    answers = client.stream(
        [request(client, 3, outputs=outputs, priority=1, timeout=5_000_000)] * 2
    )
    for result, error in answers:
        assert error is None
        assert [output.name for output in result.get_response().outputs] == ["score"]
