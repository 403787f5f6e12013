"""Formats of a predict call's messages."""

from enum import StrEnum


class MessageFormat(StrEnum):
    """The message types of a call."""

    # The Open Inference Protocol's ModelInferRequest and ModelInferResponse.
    INFER = "infer"
    # PredictRequest and PredictResponse of protos/sharded_infer/v1/predictor.proto.
    PREDICT = "predict"
