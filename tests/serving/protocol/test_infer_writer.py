import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.protocol.infer_writer import InferWriter, score_bytes

WRITER = InferWriter("ranker", 3, ("score", "labels"))
SCORE = np.array([0.5, -1.0, np.inf], np.float32)
LABELS = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.mark.parametrize("requested", [(0,), (1,), (0, 1), ()])
@pytest.mark.parametrize("request_id", ["", "17", "é"])
def test_a_response_has_each_requested_output_and_its_bytes(
    requested: tuple[int, ...], request_id: str
) -> None:
    scores = [(SCORE, LABELS)[position] for position in requested]
    message = WRITER.write(request_id, requested, scores)
    response = service_pb2.ModelInferResponse.FromString(message)
    assert (response.model_name, response.model_version) == ("ranker", "3")
    assert response.id == request_id
    assert [o.name for o in response.outputs] == [("score", "labels")[p] for p in requested]
    assert [o.datatype for o in response.outputs] == ["FP32"] * len(requested)
    assert [list(o.shape) for o in response.outputs] == [list(s.shape) for s in scores]
    assert list(response.raw_output_contents) == [s.astype("<f4").tobytes() for s in scores]


def test_scores_become_row_major_little_endian_fp32() -> None:
    scores = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, -0.5]], np.float32)
    expected = b"".join(np.array(v, "<f4").tobytes() for v in (1, 2, 3, 4, 5, -0.5))
    assert score_bytes(scores) == expected
    assert score_bytes(np.asfortranarray(scores)) == expected
    assert score_bytes(scores[:, ::2]) == b"".join(
        np.array(v, "<f4").tobytes() for v in (1, 3, 4, -0.5)
    )
    assert score_bytes(scores.astype(">f4")) == expected
