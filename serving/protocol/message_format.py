"""Message formats of a predict call."""

from enum import StrEnum


class MessageFormat(StrEnum):
    """Message types of a call."""

    # ModelInferRequest and ModelInferResponse of the Open Inference Protocol.
    INFER = "infer"
    # PredictRequest and PredictResponse of protos/sharded_infer/v1/predictor.proto.
    PREDICT = "predict"
