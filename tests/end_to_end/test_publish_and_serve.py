"""The shortest way through everything, in the fast lane."""

import signal
from pathlib import Path

import numpy as np

from tests.support.servers import (
    good_inputs,
    infer_request,
    publish_ranker,
    running_server,
    scores_of,
)


def test_a_published_model_is_served_until_the_server_is_told_to_end(tmp_path: Path) -> None:
    ranker = publish_ranker(tmp_path / "repository")
    inputs = good_inputs(8)
    with running_server(ranker.repository, tmp_path / "log") as server:
        with server.stub() as stub:
            scores = scores_of(stub.ModelInfer(infer_request(inputs), timeout=30))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
    expected = ranker.predict(inputs)
    assert scores.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(scores[name], values)
    assert "error" not in (tmp_path / "log").read_text()
