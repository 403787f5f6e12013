"""Reader and writers of a loaded version."""

from typing import NamedTuple

from serving.protocol.infer_writer import InferWriter
from serving.protocol.predict_writer import PredictWriter
from serving.protocol.readers.input_reader import InputReader


class VersionIO(NamedTuple):
    """Reader and writers of a version. Thread-safe.

    `infer_writer` is for the Open Inference Protocol, `predict_writer` for our own.
    """

    reader: InputReader
    infer_writer: InferWriter
    predict_writer: PredictWriter
