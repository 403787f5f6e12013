"""Reader and writers of one loaded version."""

from typing import NamedTuple

from serving.protocol.infer_writer import InferWriter
from serving.protocol.predict_writer import PredictWriter
from serving.protocol.readers.input_reader import InputReader


class VersionIO(NamedTuple):
    """Reader and writers, made once for each version. Thread-safe.

    Attributes:
        infer_writer: of the Open Inference Protocol's answers.
        predict_writer: of our own protocol's.
    """

    reader: InputReader
    infer_writer: InferWriter
    predict_writer: PredictWriter
