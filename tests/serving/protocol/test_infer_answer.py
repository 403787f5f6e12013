import numpy as np

from serving.protocol.infer_answer import score_bytes


def test_scores_become_row_major_little_endian_fp32() -> None:
    scores = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, -0.5]], np.float32)
    expected = b"".join(np.array(v, "<f4").tobytes() for v in (1, 2, 3, 4, 5, -0.5))
    assert score_bytes(scores) == expected
    assert score_bytes(np.asfortranarray(scores)) == expected
    assert score_bytes(scores[:, ::2]) == b"".join(
        np.array(v, "<f4").tobytes() for v in (1, 3, 4, -0.5)
    )
    assert score_bytes(scores.astype(">f4")) == expected
