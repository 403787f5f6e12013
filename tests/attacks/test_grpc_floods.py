"""gRPC clients that flood, stall or hold calls, beside one that is always answered."""

from collections.abc import Iterator

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.attacks.attacker import Target
from tests.attacks.grpc_attacks import FLOODS, UNFINISHED
from tests.attacks.honest_client import call, grpc_channel, withstand
from tests.support.servers import Ranker, good_inputs, infer_request, running_server, scores_of

INFER = b"/inference.GRPCInferenceService/ModelInfer"
ATTACKS = UNFINISHED | FLOODS
# As many as a shell allows that nobody has asked for more.
FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
import serving.cli
serving.cli.main()
"""
MOST_LOG_BYTES = 100_000


@pytest.fixture(scope="module")
def served(
    ranker: Ranker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Target, bytes, int]]:
    """A default server: a good call, its answer, and its process."""
    log = tmp_path_factory.mktemp("floods") / "stderr"
    with running_server(ranker.repository, log, program=FEW_DESCRIPTORS) as server:
        inputs = good_inputs(3)
        message = infer_request(inputs).SerializeToString()
        target = Target(server.grpc_url, INFER, message)
        with grpc_channel(target) as channel:
            answer = call(channel, target)
        response = service_pb2.ModelInferResponse.FromString(answer)
        assert np.array_equal(scores_of(response)["score"], ranker.predict(inputs)["score"])
        yield target, answer, server.process.pid
    text = log.read_text()
    assert "internal error" not in text and "Traceback" not in text, text
    # A busy machine has slow requests, of which there are some lines a second.
    others = [line for line in text.splitlines() if 'event="slow_request"' not in line]
    assert sum(map(len, others)) < MOST_LOG_BYTES, others[:20]


@pytest.mark.parametrize("attack", ATTACKS)
def test_others_are_answered_and_nothing_is_left_behind(
    served: tuple[Target, bytes, int], attack: str
) -> None:
    withstand(*served, ATTACKS[attack])
